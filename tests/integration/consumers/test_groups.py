"""Message groups: at most so many of a group in work, in their order, and groups in turn."""

from __future__ import annotations

import time

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.errors import InvalidArgument, PreconditionFailed, QueueFull
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

ONE = {"x-group-concurrency": 1}
FAIR = {"x-fair": True}
KEYS = Keys().queue("q")


def of_group(group):
    return {"x-message-group": group}


def fill(channel, *bodies, **properties):
    """Publish `a1` as a message of the group `a`, and so on."""
    for body in bodies:
        publish(channel, "q", body, headers=of_group(body.rstrip("0123456789")), **properties)


def get(channel, count):
    """Return the bodies of the next messages, which stay in work; None where none comes."""
    messages = [channel.basic_get("q") for _ in range(count)]
    return [message and message.payload for message in messages]


@pytest.fixture
def admin(broker_url):
    with BrokerAdmin(broker_url) as admin:
        yield admin


def test_one_of_a_group_is_in_work_and_the_next_comes_with_its_ack(channel):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1", "b1", "a2", "b2")
    first, _ = (channel.basic_get("q") for _ in range(2))
    assert first.payload == "a1"
    assert get(channel, 1) == [None]
    first.ack()
    assert get(channel, 2) == ["a2", None]


def test_a_group_may_be_a_property_or_a_number_and_none_is_no_group(channel):
    declare(channel, "q", arguments=ONE)
    publish(channel, "q", "1", "2", headers=of_group(7))
    publish(channel, "q", "3", "4", **{"x-message-group": "p"})
    publish(channel, "q", "5", "6")
    assert get(channel, 5) == ["1", "3", "5", "6", None]


@pytest.mark.parametrize("group", [True, 1.5, "", ["a"]])
def test_what_names_no_group_is_refused(group, channel):
    declare(channel, "q", arguments=ONE)
    with pytest.raises(InvalidArgument, match=r"'x-message-group' of a message is .*; allowed is a text"):
        publish(channel, "q", "x", headers=of_group(group))


def test_a_text_inside_a_header_names_no_group(channel):
    declare(channel, "q", arguments=ONE)
    for _ in range(2):
        publish(channel, "q", "x", headers={"argsrepr": '{"x-message-group": "a"}'})
    assert get(channel, 2) == ["x", "x"]


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({"x-expires": 9999}, {}),
        ({}, {"auto_delete": True}),
        ({}, {"exclusive": True}),
        ({"x-filtered": True}, {}),
        ({"x-max-length": 9}, {}),
        ({"x-max-pending": 9, "x-overflow": "drop-head"}, {}),
    ],
)
@pytest.mark.parametrize("asked", [ONE, FAIR], ids=["one", "fair"])
def test_what_groups_do_not_go_with_is_refused(asked, arguments, flags, channel):
    with pytest.raises(InvalidArgument, match=r"argument '(x-group-concurrency|x-fair)' of queue 'q' is .* beside .*allowed"):
        declare(channel, "q", arguments={**asked, **arguments}, **flags)


def test_strict_order_needs_a_concurrency(channel):
    with pytest.raises(InvalidArgument, match="'x-group-order' of queue 'q' is 'strict' without 'x-group-concurrency'"):
        declare(channel, "q", arguments={**FAIR, "x-group-order": "strict"})


@pytest.mark.parametrize("arguments", [FAIR, {**FAIR, "x-group-concurrency": 100}, {**FAIR, "x-max-unacked": 1000}])
def test_groups_have_their_turn_whatever_one_of_them_has_published(arguments, channel):
    declare(channel, "q", arguments=arguments)
    fill(channel, *(f"a{number}" for number in range(20)), "b1", "b2", "c1")
    assert get(channel, 7) == ["a0", "b1", "c1", "a1", "b2", "a2", "a3"]


@pytest.mark.parametrize("arguments", [FAIR, {**FAIR, "x-rate-limit": 1000}], ids=["plain", "restricted"])
def test_a_consumer_with_a_large_prefetch_is_served_in_turns_by_one_claim(arguments, connect, loop):
    channel = connect().channel()
    declare(channel, "q", arguments=arguments)
    fill(channel, *(f"a{number}" for number in range(10)), "b1", "b2")
    inbox = Inbox(channel, kombu.Queue("q", durable=True, queue_arguments=arguments), prefetch=0)
    assert inbox.exactly(12) == ["a0", "b1", "a1", "b2", *(f"a{number}" for number in range(2, 10))]


def test_a_consumer_is_woken_for_the_message_that_an_ack_of_another_admits(connect):
    declare(connect().channel(), "q", arguments=ONE)
    publisher = connect().channel()
    fill(publisher, "a1", "a2")
    first = publisher.basic_get("q")
    inbox = Inbox(connect().channel(), kombu.Queue("q", durable=True, queue_arguments=ONE))
    assert inbox.rest() == []
    first.ack()
    assert inbox.exactly(1) == ["a2"]


def test_a_higher_priority_does_not_wait_behind_its_group(channel):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1", "a2", "b1")
    fill(channel, "a3", priority=9)
    assert get(channel, 3) == ["a3", "b1", None]


def test_a_message_that_comes_back_is_held_behind_one_of_a_higher_priority(channel, admin):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1")
    first = channel.basic_get("q")
    fill(channel, "a2", priority=9)
    first.requeue()
    assert channel.queue_counters("q").ready == 2
    assert list(admin.checker().run("q")) == []
    assert get(channel, 2) == ["a2", None]


def test_a_paused_group_lets_nothing_in_that_comes_meanwhile(channel, admin):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1")
    admin.set_group("q", "a", paused=True)
    fill(channel, "a2", priority=9)
    assert get(channel, 2) == ["a1", None]


def test_a_ready_message_that_is_rescheduled_stands_behind_its_group(channel, redis_client):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1", "a2", "b1")
    (first, _) = redis_client.zrange(KEYS.ready, 0, -1)
    messages = Messages(channel.session.commands, channel.session.keys, dead_letter_max=1000)
    assert messages.reschedule("q", first.decode(), 0)
    taken = [channel.basic_get("q") for _ in range(3)]
    assert [message and message.payload for message in taken] == ["b1", "a2", None]
    taken[1].ack()
    assert get(channel, 1) == ["a1"]


def test_a_message_that_failed_steps_aside_or_keeps_its_group_waiting(channel):
    for order, expected in (("step-aside", ["a2"]), ("strict", [None])):
        declare(channel, "q", arguments={**ONE, "x-group-order": order, "x-retry-policy": "constant first=3600000"})
        fill(channel, "a1", "a2")
        channel.basic_get("q").requeue()
        assert get(channel, 1) == expected
        channel.queue_delete("q")


def test_the_message_of_a_killed_worker_is_the_next_of_its_group(connect):
    declare(connect().channel(), "q", arguments=ONE)
    broken = connect()
    fill(broken.channel(), "a1", "a2")
    dying = Inbox(broken.channel(), kombu.Queue("q", durable=True, queue_arguments=ONE), ack=False)
    assert dying.exactly(1) == ["a1"]
    broken.close()
    inbox = Inbox(connect().channel(), kombu.Queue("q", durable=True, queue_arguments=ONE))
    assert inbox.exactly(2) == ["a1", "a2"]
    assert inbox.messages[0].delivery_info["redelivered"]


def test_held_messages_expire(channel, redis_client):
    declare(channel, "q", arguments={**ONE, "x-message-ttl": 200})
    inbox = Inbox(channel, kombu.Queue("q", durable=True, queue_arguments={**ONE, "x-message-ttl": 200}), ack=False)
    fill(channel, "a1", "a2", "a3")
    assert inbox.exactly(1) == ["a1"]
    wait_until(lambda: redis_client.zcard(KEYS.dead) == 2, 20, "the held ones are dead")
    inbox.messages[0].ack()
    wait_until(lambda: redis_client.exists(KEYS.held, KEYS.groups) == 0, 20, "nothing is left of the group")


def test_held_messages_count_towards_limits(channel):
    declare(channel, "q", arguments={**ONE, "x-max-length": 3, "x-overflow": "reject-publish"})
    fill(channel, "a1", "a2", "a3")
    with pytest.raises(QueueFull, match="x-max-length is 3"):
        fill(channel, "a4")
    channel.basic_get("q").ack()
    fill(channel, "a4")


def test_held_messages_are_seen_everywhere(channel, admin):
    declare(channel, "q", arguments=ONE)
    fill(channel, "b1", "a1", "a2", "a3")
    assert channel.queue_declare("q", passive=True).message_count == 4
    assert (admin.overview_of("q").ready, channel.queue_counters("q").ready) == (4, 4)
    listed = list(admin.list_messages("q", "ready"))
    assert [message.headers["x-message-group"] for message in listed] == ["b", "a", "a", "a"]
    assert admin.list_messages("q", "ready", first=3).__next__().tag == listed[3].tag
    explained = admin.explain("q", listed[3].tag)
    assert explained.message.position == 3
    assert explained.causes[0].text == (
        "it waits behind 2 of its group 'a': 1 ready or in work, 1 held before it (x-group-concurrency 1)"
    )
    browser = channel.connection.client.channel()
    copies = []
    queue = kombu.Queue("q", durable=True, queue_arguments=ONE, consumer_arguments={"x-browse": True}, channel=browser)
    queue.consume(callback=copies.append, no_ack=True)
    wait_until(lambda: channel.connection.client.drain_events(timeout=5) or len(copies) == 4, 20, "all are browsed", interval_s=0)
    assert admin.cancel("q", [listed[2].tag]) == [listed[2].tag]
    assert channel.queue_purge("q") == 3


def test_check_finds_and_mends_groups_that_are_wrong(channel, admin, redis_client):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1", "a2", "b1", "b2", "c1", "c2")
    members = redis_client.zrange(KEYS.groups, 0, -1)
    # A place without a message, a message without a place, and one that the server has evicted.
    redis_client.zadd(KEYS.groups, {b"d\x00rnobody": 0})
    redis_client.zrem(KEYS.groups, next(member for member in members if member.startswith(b"a\x00r")))
    redis_client.unlink(KEYS.message + redis_client.zrange(KEYS.held, 1, 1)[0])
    rules = {violation.rule for violation in admin.checker(repair=True).run("q")}
    assert rules == {"group-member-without-message", "not-in-group", "tag-without-hash"}
    assert list(admin.checker().run("q")) == []
    assert get(channel, 4) == ["a1", "b1", "c1", None]


def test_check_lists_the_expiry_of_a_held_message(channel, admin, redis_client):
    declare(channel, "q", arguments={**ONE, "x-message-ttl": 600_000})
    fill(channel, "a1", "a2")
    (held,) = redis_client.zrange(KEYS.held, 0, -1)
    redis_client.zrem(KEYS.expiry, held)
    assert [violation.rule for violation in admin.checker(repair=True).run("q")] == ["no-expiry"]
    assert redis_client.zscore(KEYS.expiry, held)


def test_check_finds_a_group_with_room_for_what_it_holds(channel, admin, redis_client):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1", "a2")
    (ready,) = redis_client.zrange(KEYS.ready, 0, -1)
    redis_client.zrem(KEYS.ready, ready)
    redis_client.zrem(KEYS.groups, b"a\x00r" + ready)
    redis_client.unlink(KEYS.message + ready)
    assert [violation.rule for violation in admin.checker(repair=True).run("q")] == ["group-with-room"]
    assert get(channel, 2) == ["a2", None]


def test_groups_of_an_exchange_that_broadcasts_are_refused(channel):
    channel.exchange_declare("f", "fanout")
    declare(channel, "q", arguments=FAIR)
    with pytest.raises(PreconditionFailed, match="broadcasts come in their order"):
        channel.queue_bind("q", "f")


def test_another_concurrency_is_refused_by_a_declaration_and_by_a_policy(channel, admin):
    declare(channel, "q", arguments=ONE)
    with pytest.raises(
        PreconditionFailed, match="inequivalent arg 'x-group-concurrency' for queue 'q': received 2 but current is 1"
    ):
        declare(channel, "q", arguments={"x-group-concurrency": 2})
    with pytest.raises(InvalidArgument, match="'x-group-concurrency' of policy 'q' cannot change while a queue lives"):
        admin.set_policy("q", {"x-group-concurrency": 2}, "test")


def test_a_policy_cannot_make_a_queue_with_groups_drop_its_head(channel, admin):
    declare(channel, "q", arguments=ONE)
    (problem,) = admin.set_policy("q", {"x-max-length": 5}, "test").values()
    assert "'x-group-concurrency' of queue 'q' is 1 beside a limit with 'x-overflow' 'drop-head'" in problem
    assert admin.set_policy("q", {"x-max-length": 5, "x-overflow": "block"}, "test") == {"q": None}


@pytest.mark.parametrize(
    "more",
    [
        {"x-single-active-consumer": True},
        {"x-rate-limit": 1000},
        {"x-max-unacked": 10},
        {"x-priority-ageing": 60_000},
        {"x-event-log": True},
        {"x-max-pending": 50, "x-overflow": "block"},
        {"x-retry-policy": "constant first=10"},
    ],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("asked", [ONE, {**FAIR, **ONE}], ids=["one", "fair"])
def test_groups_go_with_other_arguments(asked, more, connect):
    arguments = {**asked, **more}
    inbox = Inbox(connect().channel(), kombu.Queue("q", durable=True, queue_arguments=arguments), prefetch=3)
    fill(connect().channel(), *(f"{group}{number}" for number in range(5) for group in "ab"))
    bodies = inbox.exactly(10)
    for group in "ab":
        assert [body for body in bodies if body[0] == group] == [f"{group}{number}" for number in range(5)]


def test_a_paused_queue_goes_on_with_its_groups(channel, admin):
    declare(channel, "q", arguments=ONE)
    fill(channel, "a1", "a2")
    first = channel.basic_get("q")
    admin.pause("q", "test")
    first.ack()
    assert get(channel, 1) == [None]
    admin.resume("q")
    assert get(channel, 2) == ["a2", None]


def test_a_deduplicated_message_is_held_once(channel):
    declare(channel, "q", arguments=ONE)
    for _ in range(2):
        publish(channel, "q", "a", headers={**of_group("a"), "x-deduplication-id": "1"})
    assert channel.queue_counters("q").ready == 1


def test_a_large_message_of_a_group_is_held_too(channel):
    declare(channel, "q", arguments=ONE)
    large = "x" * 1_100_000
    publish(channel, "q", large, "second", headers=of_group("a"))
    first = channel.basic_get("q")
    assert first.payload == large
    assert get(channel, 1) == [None]
    first.ack()
    assert get(channel, 1) == ["second"]


def test_a_group_that_takes_most_of_the_time_stands_behind_others_that_come(channel, redis_client):
    declare(channel, "q", arguments=FAIR)
    fill(channel, "n1", "n2", "n3", "n4")
    redis_client.zadd(KEYS.group_times, {"n": 900, "": 1000})
    channel.basic_get("q").ack()
    fill(channel, "q1")
    # Of the noisy group one was ready before the quiet one came, and goes behind it.
    assert get(channel, 3) == ["q1", "n2", "n3"]
    # Turns are numbered by time, one a millisecond at least: the last one may be ahead of the clock.
    began = server_ms(channel.session.commands)
    wait_until(lambda: server_ms(channel.session.commands) > began + 20)
    fill(channel, "q2")
    # Without a backlog it is quiet again.
    assert get(channel, 2) == ["n4", "q2"]


def test_a_group_with_most_of_what_is_in_work_stands_behind_others_that_come(channel):
    declare(channel, "q", arguments=FAIR)
    fill(channel, *(f"n{number}" for number in range(35)))
    assert get(channel, 31)[-1] == "n30"
    fill(channel, "q1")
    assert get(channel, 1) == ["q1"]


def test_a_groups_time_is_what_its_messages_were_in_work(channel, redis_client):
    declare(channel, "q", arguments=FAIR)
    fill(channel, "n1", "q1")
    first, second = channel.basic_get("q"), channel.basic_get("q")
    time.sleep(0.02)
    first.ack()
    second.ack()
    wait_until(lambda: redis_client.zcard(KEYS.groups) == 0)
    times = dict(redis_client.zrange(KEYS.group_times, 0, -1, withscores=True))
    assert times[b"n"] >= 20
    assert times[b""] == times[b"n"] + times[b"q"]
    assert 0 < redis_client.pttl(KEYS.group_times) <= 300_000
