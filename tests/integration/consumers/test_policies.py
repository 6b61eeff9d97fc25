"""Arguments that steer change while a queue lives: by a policy, or by a declaration with `on_mismatch`."""

from __future__ import annotations

import json
import logging
import threading
import time

import kombu
import pytest
from kombu.exceptions import ChannelError
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_redis_plus import clock
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.arguments.argument_rules import STEERING
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.queues.policies import PolicyList
from celery_redis_plus.errors import InvalidArgument, PublishRefused
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance import policy_changes
from celery_redis_plus.maintenance.leader import Leadership
from celery_redis_plus.maintenance.policy_changes import PolicyChanges
from celery_redis_plus.record_fields import COUNTERS
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

#: A value of each argument that steers, and another one.
VALUES = {
    "x-message-ttl": (60_000, 90_000),
    "x-max-length": (10, 20),
    "x-max-length-bytes": (10_000, 20_000),
    "x-max-pending": (10, 20),
    "x-overflow": ("reject-publish", "block"),
    "x-throttle": (True, 0.5),
    "x-accept-types": (["a.*"], ["b.*"]),
    "x-delivery-limit": (3, 5),
    "x-delayed-retry-min": (10, 20),
    "x-delayed-retry-max": (100, 200),
    "x-retry-policy": ("exponential first=1000", "linear first=1000"),
    "x-redrive": ("after=10m", "after=1h times=3"),
    "x-consumer-timeout": (60_000, 90_000),
    "x-dead-letter-exchange": ("", "dead"),
    "x-dead-letter-routing-key": ("a", "b"),
    "x-single-active-consumer": (True, False),
    "x-max-unacked": (2, 4),
    "x-rate-limit": (100, "50/m"),
}
#: What an argument cannot stand without.
BESIDE = {
    "x-dead-letter-routing-key": {"x-dead-letter-exchange": ""},
    "x-delayed-retry-max": {"x-delayed-retry-min": 10},
    "x-throttle": {"x-max-length": 1000},
}
#: Fields of a record that say what has happened, or which record it is.
HISTORY = {
    "id",
    "newest",
    "swept",
    "sweeper",
    "lease",
    "grace",
    "next",
    "rebase_cursor",
    "rebased",
    "timeouts",
    "tickets",
    "activations",
    *COUNTERS,
}


@pytest.fixture
def operator(broker_url):
    with BrokerAdmin(broker_url) as operator:
        yield operator


def record(client, queue):
    fields = client.hgetall(Keys().queue(queue).meta)
    return {name.decode(): value for name, value in fields.items() if name.decode() not in HISTORY}


def test_each_argument_that_steers_has_its_case():
    assert VALUES.keys() == STEERING


@pytest.mark.parametrize("argument", VALUES)
def test_a_policy_leaves_the_record_that_a_declaration_would_have_made(connect, redis_client, operator, argument):
    channel, beside = connect().channel(), BESIDE.get(argument, {})
    first, second = VALUES[argument]
    declare(channel, "q", "none", arguments=beside)
    declare(channel, "one", arguments={**beside, argument: first})
    declare(channel, "two", arguments={**beside, argument: second})
    own = record(redis_client, "q")
    for value, like in ((first, "one"), (second, "two"), (None, "none")):
        assert operator.set_policy("q", {argument: value}, "test") == {"q": None}
        found, expected = record(redis_client, "q"), record(redis_client, like)
        declared = found.pop("declared", None)
        assert json.loads(declared or found["arguments"]) == json.loads(own["arguments"])
        for fields in (found, expected):
            # Spelled with the queue's name.
            fields.pop("waiting_publishers", None)
        assert found == expected
    operator.set_policy("q", {argument: first}, "test")
    assert operator.remove_policy("q") == {"q": None}
    assert record(redis_client, "q") == own


@pytest.mark.parametrize("argument", ["x-max-priority", "x-expires", "x-priority-ageing", "x-event-log", "x-unknown"])
def test_what_a_queue_is_cannot_be_changed_by_a_policy(operator, argument):
    with pytest.raises(InvalidArgument, match=rf"argument '{argument}' of policy 'q' cannot change .* allowed: .*x-rate-limit"):
        operator.set_policy("q", {argument: 1}, "test")
    assert operator.policies() == []


@pytest.mark.parametrize(
    ("arguments", "reason", "more", "text"),
    [
        ({"x-rate-limit": "often"}, "r", {}, "argument 'x-rate-limit' of policy 'q' is 'often'"),
        ({}, "r", {}, "has no argument"),
        ({"x-max-length": 1}, " ", {}, "has no reason"),
        ({"x-max-length": 1}, "r", {"for_s": 0}, "is for 0 s; allowed is more than 0"),
        ({"x-max-length": 1}, "r", {"priority": 1001}, "has priority 1001; allowed"),
    ],
)
def test_a_policy_that_is_wrong_is_refused_whole(operator, arguments, reason, more, text):
    with pytest.raises(InvalidArgument, match=text):
        operator.set_policy("q", arguments, reason, **more)
    assert operator.policies() == []


def test_reserved_arguments_of_groups_are_refused(channel):
    with pytest.raises(InvalidArgument, match="'x-group-window' of queue 'q' is not known by this release"):
        channel.queue_declare("q", durable=True, arguments={"x-group-window": 1})


def test_a_rate_is_in_force_at_once_for_consumers_that_wait_by_the_old_one(connect, operator):
    channel = connect().channel()
    # The next token comes in ten minutes.
    inbox = Inbox(channel, kombu.Queue("q", durable=True, queue_arguments={"x-rate-limit": "6/h"}))
    publish(channel, "q", *range(20))
    assert inbox.rest(0.3) == [0]
    operator.set_policy("q", {"x-rate-limit": 1000}, "the provider allows more")
    assert inbox.drain(20, timeout_s=10) == [*range(20)]
    operator.set_policy("q", {"x-rate-limit": None}, "no limit")
    publish(channel, "q", *range(20, 60))
    assert inbox.drain(60, timeout_s=10) == [*range(60)]


def test_a_rate_holds_a_plain_queue_back_at_once(connect, operator):
    channel = connect().channel()
    inbox = Inbox(channel, "q", prefetch=1)
    publish(channel, "q", 1)
    inbox.drain(1)
    operator.set_policy("q", {"x-rate-limit": "6/h"}, "stop")
    publish(channel, "q", *range(2, 10))
    assert len(inbox.rest(0.5)) == 2
    operator.remove_policy("q")
    assert inbox.drain(9, timeout_s=10) == [*range(1, 10)]


def test_publishers_meet_a_new_limit_with_the_next_message(connect, operator):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", 1, 2, 3)
    operator.set_policy("q", {"x-max-length": 3, "x-overflow": "reject-publish"}, "full enough")
    with pytest.raises(PublishRefused):
        publish(channel, "q", 4)
    operator.set_policy("q", {"x-max-length": 4, "x-overflow": "reject-publish"}, "one more")
    publish(channel, "q", 4)
    operator.remove_policy("q")
    publish(channel, "q", 5)
    assert Inbox(channel, "q").drain(5) == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("frequent_looks")
def test_bytes_are_limited_only_where_they_were_counted(connect, operator):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    (why,) = operator.set_policy("q", {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}, "small").values()
    assert "their bytes were not counted" in why
    publish(channel, "q", "y" * 2000)
    inbox = Inbox(channel, "q")
    inbox.drain(2)
    # The leader puts it into force once the queue is empty.
    wait_until(lambda: (inbox.pump(0.05), operator.arguments("q") != {})[1])
    inbox.cancel()
    with pytest.raises(PublishRefused):
        publish(channel, "q", "y" * 2000)


def test_a_single_active_consumer_takes_over_from_several(connect, operator):
    channel = connect().channel()
    inboxes = [Inbox(connect().channel(), "q", prefetch=1) for _ in range(3)]
    operator.set_policy("q", {"x-single-active-consumer": True}, "in order")

    def active():
        return [one.active for one in operator.consumers("q")]

    assert active() == [True, False, False]
    bodies = [*range(20)]
    publish(channel, "q", *bodies)
    wait_until(lambda: [inbox.pump(0.02) for inbox in inboxes] and sum(len(one.messages) for one in inboxes) == 20)
    assert max((inbox.bodies for inbox in inboxes), key=len) == bodies
    operator.remove_policy("q")
    publish(channel, "q", *range(20, 80))
    wait_until(lambda: [inbox.pump(0.02) for inbox in inboxes] and sum(len(one.messages) for one in inboxes) == 80)
    assert sum(bool(inbox.messages) for inbox in inboxes) > 1


def test_a_delivery_limit_and_a_dead_letter_target_apply_to_what_waits(connect, operator):
    channel = connect().channel()
    declare(channel, "q", "dead")
    publish(channel, "q", 1)
    policy = {"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    operator.set_policy("q", policy, "poison")
    failing = Inbox(channel, "q", prefetch=1, ack=False)
    failing.drain(1)
    failing.messages[0].reject(requeue=False)
    assert Inbox(connect().channel(), "dead").drain(1) == [1]


def test_the_most_particular_policy_of_the_highest_priority_applies(channel, operator):
    declare(channel, "team.a", "team.b", "other")

    def limits():
        return {name: operator.arguments(name).get("x-max-length") for name in ("team.a", "team.b", "other")}

    assert operator.set_policy("team.*", {"x-max-length": 1}, "all") == {"team.a": None, "team.b": None}
    operator.set_policy("team.a", {"x-max-length": 2}, "one")
    assert limits() == {"team.a": 2, "team.b": 1, "other": None}
    assert operator.set_policy("[st]eam.a", {"x-max-length": 9}, "longer") == {"team.a": "policy 'team.a' applies instead"}
    operator.set_policy("*", {"x-max-length": 3}, "everywhere", priority=1)
    assert limits() == {"team.a": 3, "team.b": 3, "other": 3}
    assert operator.set_policy("team.b", {"x-max-length": 4}, "one")["team.b"] == "policy '*' applies instead"
    operator.remove_policy("*")
    assert limits() == {"team.a": 2, "team.b": 4, "other": None}
    assert operator.remove_policy("nothing") is None


def test_a_policy_is_in_force_for_queues_that_are_declared_later_but_not_transient_ones(channel, operator):
    operator.set_policy("*", {"x-max-length": 5}, "all")
    declare(channel, "lasting")
    declare(channel, "transient", auto_delete=True, durable=False)
    assert operator.arguments("lasting") == {"x-max-length": 5}
    assert operator.arguments("transient") == {}


def test_a_declaration_knows_what_a_policy_has_replaced(connect, operator, caplog):
    channel = connect().channel()
    declare(channel, "q", arguments={"x-max-length": 10})
    operator.set_policy("q", {"x-max-length": 5}, "less")
    other = connect(on_mismatch="error").channel()
    declare(other, "q", arguments={"x-max-length": 10})
    with pytest.raises(ChannelError, match="inequivalent arg 'x-max-length' for queue 'q': received 5 but current is 10"):
        declare(other, "q", arguments={"x-max-length": 5})
    declare(connect(on_mismatch="apply").channel(), "q", arguments={"x-max-length": 20})
    assert operator.arguments("q") == {"x-max-length": 5}
    operator.remove_policy("q")
    assert operator.arguments("q") == {"x-max-length": 20}
    assert "inequivalent" not in caplog.text


@pytest.fixture
def frequent_looks(monkeypatch):
    monkeypatch.setattr(policy_changes, "LOOK_S", 0.3)


@pytest.mark.usefixtures("frequent_looks")
def test_a_policy_ends_by_itself(connect, operator):
    channel = connect().channel()
    inbox = Inbox(channel, "q")
    wait_until(lambda: channel.session.service.figures()["leads"])
    assert operator.set_policy("q", {"x-rate-limit": "1/h"}, "tonight", for_s=1) == {"q": None}
    (policy,) = operator.policies()
    assert (policy.until - policy.since).total_seconds() == 1
    assert operator.arguments("q") == {"x-rate-limit": "1/h"}
    wait_until(lambda: (inbox.pump(0.05), operator.arguments("q") == {})[1], 40)
    assert operator.policies() == []


@pytest.mark.usefixtures("frequent_looks")
def test_what_a_setter_left_undone_is_done_by_the_leader(connect, operator):
    channel = connect().channel()
    declare(channel, "q")
    PolicyList(channel.session.commands, Keys()).put("q", {"x-max-length": 7}, "killed before it steered")
    inbox = Inbox(channel, "other")
    wait_until(lambda: (inbox.pump(0.05), operator.arguments("q") == {"x-max-length": 7})[1], 40)


def test_a_policy_for_all_queues_stops_no_subscriber_of_a_fanout_exchange(connect, operator):
    news = kombu.Exchange("news", "fanout", durable=True)
    queue = kombu.Queue("q", news, durable=True, queue_arguments={"x-durable-subscriber": True})
    operator.set_policy("*", {"x-max-length": 10, "x-overflow": "reject-publish", "x-rate-limit": 100}, "all")
    inbox = Inbox(connect().channel(), queue)
    assert operator.arguments("q")["x-max-length"] == 10
    again = Inbox(connect().channel(), queue)
    kombu.Producer(connect().channel(), news).publish("x")
    wait_until(lambda: [one.pump(0.02) for one in (inbox, again)] and inbox.bodies + again.bodies)


def test_a_policy_that_cannot_be_read_stops_no_other(connect, redis_client, operator, caplog):
    channel = connect().channel()
    operator.set_policy("q", {"x-max-length": 5}, "fine")
    redis_client.hset("policies", "a*", "{")
    declare(channel, "a1", "q")
    assert operator.arguments("q") == {"x-max-length": 5}
    assert [one.pattern for one in operator.policies()] == ["q"]
    assert "policy 'a*' cannot be read" in caplog.text
    redis_client.delete("policies")
    redis_client.set("policies", "foreign")
    declare(channel, "later")
    assert operator.policies() == []


# -- declarations with other arguments ------------------------------------------------------------------------------------


def test_a_queue_keeps_what_it_has_and_the_declaration_is_told_once(connect, operator, caplog):
    declare(connect().channel(), "q", arguments={"x-rate-limit": "100/s"})
    channel = connect().channel()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            declare(channel, "q", arguments={"x-rate-limit": "200/s"})
    warnings = [entry.getMessage() for entry in caplog.records if "inequivalent" in entry.getMessage()]
    assert len(warnings) == 1
    assert "inequivalent arg 'x-rate-limit' for queue 'q': received '200/s' but current is '100/s'" in warnings[0]
    assert operator.arguments("q") == {"x-rate-limit": "100/s"}


def test_a_declaration_applies_its_arguments_where_that_is_wanted(connect, operator):
    first = connect().channel()
    declare(first, "q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    declare(connect(on_mismatch="apply").channel(), "q", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    assert operator.arguments("q") == {"x-max-length": 3, "x-overflow": "reject-publish"}
    # A publisher that knew the old ones.
    publish(first, "q", 1, 2, 3)
    with pytest.raises(PublishRefused):
        publish(first, "q", 4)


@pytest.mark.parametrize("on_mismatch", ["keep", "apply", "error"])
def test_arguments_that_say_what_a_queue_is_stay_as_they_are(connect, on_mismatch):
    declare(connect().channel(), "q", arguments={"x-max-priority": 5, "x-max-length": 5})
    with pytest.raises(ChannelError, match="inequivalent arg 'x-max-priority'") as caught:
        declare(connect(on_mismatch=on_mismatch).channel(), "q", arguments={"x-max-priority": 9, "x-max-length": 6})
    assert caught.value.code == 406


def test_changes_under_traffic_lose_nothing_and_reach_all_who_know_the_old_arguments(connect, operator):
    channel = connect().channel()
    declare(channel, "q")
    inboxes = [Inbox(connect().channel(), "q", prefetch=5) for _ in range(3)]
    publishers = [connect().channel() for _ in range(4)]
    sent, deadline = 0, time.monotonic() + 60
    for argument, (first, second) in VALUES.items():
        if argument in {"x-max-length-bytes", "x-accept-types", "x-rate-limit"}:
            # Bytes need an empty queue; the other two would hold these messages back.
            continue
        for value in (first, second, None):
            changes = {**BESIDE.get(argument, {}), argument: value}
            limit = {"x-max-length": 1000} if argument in {"x-overflow", "x-throttle"} else {}
            wide = {key: 1000 for key in ("x-max-length", "x-max-pending") if key in changes and changes[key] is not None}
            assert operator.set_policy("q", {**changes, **limit, **wide}, "test") == {"q": None}
            for publisher in publishers:
                publish(publisher, "q", sent)
                sent += 1
            for inbox in inboxes:
                inbox.pump(0.005)
            assert time.monotonic() < deadline
    operator.remove_policy("q")
    wait_until(lambda: [inbox.pump(0.02) for inbox in inboxes] and sum(len(one.messages) for one in inboxes) >= sent)
    assert sorted(body for inbox in inboxes for body in inbox.bodies) == [*range(sent)]


# -- processes that die or stand still on the way -------------------------------------------------------------------------


def test_who_steers_by_an_older_list_reads_it_again(connect, broker_url, operator, monkeypatch):
    declare(connect().channel(), "q")
    operator.set_policy("q", {"x-max-length": 5}, "for now")
    with BrokerAdmin(broker_url) as late:
        policies = late._queues._policies  # noqa: SLF001
        real = policies.read

        def slow():
            monkeypatch.undo()
            found = real()
            operator.remove_policy("q")
            return found

        monkeypatch.setattr(policies, "read", slow)
        late._queues.steer("q", kombu_arguments(x_delivery_limit=3))  # noqa: SLF001
    assert operator.arguments("q") == {"x-delivery-limit": 3}


def kombu_arguments(**arguments):
    """Return the arguments of a lasting queue, with hyphens in their names."""
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    return QueueArguments.parse("q", durable=True, arguments=table)


@pytest.mark.usefixtures("frequent_looks")
def test_a_removal_that_was_killed_halfway_is_completed(connect, operator):
    channel = connect().channel()
    inbox = Inbox(channel, "q")
    wait_until(lambda: (inbox.pump(0.02), channel.session.service.figures()["leads"])[1])
    operator.set_policy("q", {"x-rate-limit": "1/h"}, "r")
    operator.unlist_policy("q")
    wait_until(lambda: (inbox.pump(0.05), operator.arguments("q") == {})[1])


class Looks:
    """The leader's task of a process that leads when it is told so."""

    def __init__(self, operator, channel):
        self.leadership = Leadership(60)
        self.policies = PolicyList(channel.session.commands, Keys())
        self.task = PolicyChanges(operator._queues, self.policies, self.leadership)  # noqa: SLF001

    def look(self, epoch):
        self.leadership.epoch = epoch
        self.task.run_soon()
        self.task.run()
        # On a busy machine its slice of time is over before the last queue.
        while self.task.next_run_at == 0:
            self.task.run()


def test_a_leader_completes_what_another_one_has_begun(connect, operator):
    channel = connect().channel()
    declare(channel, "q")
    looks = Looks(operator, channel)
    looks.look(1)
    operator.set_policy("q", {"x-rate-limit": "1/h"}, "r", for_s=0.05)
    wait_until(lambda: operator.policies() == [])
    # Another leader, which dies before it steers.
    looks.policies.remove_ended()
    looks.look(3)
    assert operator.arguments("q") == {}


def test_a_policy_that_a_queue_refuses_is_tried_again_with_each_look(connect, operator):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    policy = {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}
    operator.set_policy("q", policy, "small")
    looks = Looks(operator, channel)
    looks.look(1)
    assert operator.arguments("q") == {}
    channel.queue_purge("q")
    looks.look(1)
    assert operator.arguments("q") == policy


def test_a_leader_looks_again_when_a_policy_ends(connect, operator):
    looks = Looks(operator, connect().channel())
    operator.set_policy("q", {"x-max-length": 5}, "for a while", for_s=5)
    looks.look(1)
    assert looks.task.next_run_at <= clock.now_s() + 5


def test_a_leader_whose_call_fails_goes_on_with_the_same_queue(connect, operator, monkeypatch):
    channel = connect().channel()
    declare(channel, "q1", "q2")
    looks = Looks(operator, channel)
    operator.list_policy("*", {"x-max-length": 5}, "killed")
    with monkeypatch.context() as broken:
        broken.setattr(looks.task._queues, "steer", lambda *_, **__: (_ for _ in ()).throw(RedisConnectionError("cut")))  # noqa: SLF001
        with pytest.raises(RedisConnectionError):
            looks.look(1)
    looks.look(1)
    assert [operator.arguments(name) for name in ("q1", "q2")] == [{"x-max-length": 5}] * 2


def test_a_policy_that_is_prolonged_while_it_ends_stays(connect, operator, monkeypatch):
    channel = connect().channel()
    operator.set_policy("q", {"x-max-length": 5}, "r", for_s=0.05)
    wait_until(lambda: operator.policies() == [])
    policies = PolicyList(channel.session.commands, Keys())
    real = policies.read

    def slow():
        monkeypatch.undo()
        found = real()
        operator.set_policy("q", {"x-max-length": 6}, "longer", for_s=3600)
        return found

    monkeypatch.setattr(policies, "read", slow)
    policies.remove_ended()
    assert [one.arguments for one in operator.policies()] == [{"x-max-length": 6}]


# -- queues that nobody has declared, or that were lost -------------------------------------------------------------------


def test_a_queue_that_its_first_publish_has_made_has_the_policy(channel, operator):
    operator.set_policy("*", {"x-max-length": 3, "x-overflow": "reject-publish"}, "r")
    publish(channel, "q", 1, 2, 3)
    with pytest.raises(PublishRefused):
        publish(channel, "q", 4)


def test_a_declaration_leaves_nothing_of_a_policy_that_has_ended(connect, redis_client, operator):
    channel = connect().channel()
    publish(channel, "q", *range(30))
    operator.set_policy("q", {"x-rate-limit": "6/h"}, "r")
    operator.unlist_policy("q")
    inbox = Inbox(connect().channel(), "q")
    assert inbox.drain(30, timeout_s=10) == [*range(30)]
    assert redis_client.hget("meta:{q}", "rate") is None


def test_a_flush_takes_the_policies_and_what_they_said(connect, redis_client, operator):
    channel = connect().channel()
    declare(channel, "q")
    operator.set_policy("q", {"x-max-length": 2, "x-overflow": "reject-publish"}, "r")
    publish(channel, "q", 1)
    redis_client.flushall()
    publish(channel, "q", 2)
    assert operator.arguments("q") == {}
    declare(connect(on_mismatch="error").channel(), "q")


# -- counts and lines -----------------------------------------------------------------------------------------------------


def test_a_purge_counts_out_the_bytes_of_what_was_published_before_a_policy(connect, redis_client, operator):
    arguments = {"x-max-length-bytes": 20_000, "x-overflow": "reject-publish"}
    channel = connect().channel()
    declare(channel, "q", arguments=arguments)
    publish(channel, "q", *["x" * 3000] * 5)
    Inbox(connect().channel(), kombu.Queue("q", durable=True, queue_arguments=arguments), prefetch=1, ack=False).drain(1)
    operator.set_policy("q", {"x-max-length": 1000}, "r")
    operator.purge("q")
    assert 3000 < int(redis_client.hget("meta:{q}", "bytes")) < 4500
    publish(channel, "q", *["y" * 3000] * 3)
    assert not list(operator.checker().run())


def test_a_declaration_that_cannot_be_applied_leaves_its_consumer_alone(connect, operator, caplog):
    publish(connect().channel(), "q", 1, 2)
    queue = kombu.Queue("q", durable=True, queue_arguments={"x-max-length-bytes": 5000})
    declare(connect().channel(), "q")
    assert Inbox(connect(on_mismatch="apply").channel(), queue).drain(2) == [1, 2]
    assert "their bytes were not counted" in caplog.text
    assert operator.arguments("q") == {}


def test_publishers_that_waited_for_an_earlier_limit_are_in_no_ones_way(connect, operator):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", 1, 2)
    operator.set_policy("q", {"x-max-length": 2, "x-overflow": "block"}, "r")
    waiting = [threading.Thread(target=publish, args=(connect().channel(), "q", 3), daemon=True) for _ in range(5)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: operator.counters("q").blocked == 5)
    operator.remove_policy("q")
    for thread in waiting:
        thread.join(20)
    operator.set_policy("q", {"x-max-length": 12, "x-overflow": "block"}, "r")
    publish(channel, "q", 9)
    assert operator.counters("q").blocked == 5


def test_the_consumer_of_an_idle_queue_hears_of_other_arguments_at_once(connect, operator):
    """It waits for another wake-up from then on. Without word it would hear of them with its next look, after 7 s or more."""
    inbox = Inbox(connect().channel(), "q")
    sweeper = inbox.channel.session.service.tasks.sweeper
    wait_until(lambda: (inbox.pump(0.05), sweeper.next_run_at - clock.now_s() > 7)[1])
    operator.set_policy("q", {"x-single-active-consumer": True}, "test")
    publish(connect(client_name="publisher").channel(), "q", "first")
    assert inbox.drain(1, timeout_s=5) == ["first"]


def test_a_change_that_nobody_takes_leaves_nothing_that_ends_by_itself(connect, redis_client, operator):
    inbox = Inbox(connect().channel(), "q")
    inbox.channel.session.service.stop()
    operator.set_policy("q", {"x-rate-limit": 100}, "test")
    assert redis_client.pttl("schedule_wakeup:{q}") == -1
    assert list(operator.checker().run()) == []


def test_a_consumer_hears_of_arguments_that_a_publish_of_its_process_has_met(connect, operator):
    connection = connect(polling_interval=60)
    inbox, channel = Inbox(connection.channel(), "q"), connection.channel()
    operator.set_policy("q", {"x-single-active-consumer": True}, "r")
    publish(channel, "q", 1)
    inbox.drain(1)
    operator.remove_policy("q")
    publish(channel, "q", 2)
    inbox.drain(2)
    publish(channel, "q", 3)
    assert inbox.drain(3, timeout_s=20) == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        '{"arguments":{},"without":[],"reason":"r","priority":0,"since":1,"until":1e999}',
        '{"arguments":{},"without":[],"reason":"r","priority":1e999,"since":1,"until":0}',
        '{"arguments":{},"without":[[1]],"reason":"r","priority":0,"since":1,"until":0}',
        '{"arguments":{"x-max-priority":5},"without":[],"reason":"r","priority":0,"since":1,"until":0}',
        '{"arguments":{"x-max-length":"x"},"without":[],"reason":"r","priority":0,"since":1,"until":0}',
        "[" * 200_000,
        b"\xff\xfe",
    ],
    ids=["until", "priority", "without", "fixed", "value", "deep", "bytes"],
)
def test_a_damaged_policy_stops_no_other(channel, redis_client, operator, text, caplog):
    operator.set_policy("good*", {"x-max-length": 5}, "r")
    redis_client.hset("policies", "*", text)
    declare(channel, "good")
    assert [one.pattern for one in operator.policies()] == ["good*"]
    assert operator.arguments("good") == {"x-max-length": 5}
    assert "policy '*' cannot be read" in caplog.text
    assert operator.remove_policy("*") is not None
