"""A queue with a single active consumer: one gets the messages, the others wait for its end."""

from __future__ import annotations

from threading import Lock

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import ServerUnavailable
from celery_redis_plus.maintenance.process_services import set_keeper
from celery_redis_plus.maintenance.reconnect_recovery import ReconnectRecovery
from tests.integration.consumers.test_priorities import together
from tests.support.active_tasks import KnownWorker
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

SINGLE = {"x-single-active-consumer": True}


def single(**options):
    return kombu.Queue("q", durable=True, queue_arguments=SINGLE, **options)


def listed(inbox):
    """Return the session's list of consumers, and the consumer that is on it."""
    server = inbox.connection.transport.delivery_loop.server
    [consumer] = server.consumers[0].consumers.values()
    return server.session.consumers, consumer


def test_one_gets_everything_and_the_next_takes_over_when_it_cancels(connect, broker_url):
    first, second = (Inbox(connect(polling_interval=600).channel(), single(), prefetch=2) for _ in range(2))
    publisher = connect().channel()
    publish(publisher, "q", *range(10))
    together(first, second)
    assert (first.bodies, second.bodies) == (list(range(10)), [])
    with BrokerAdmin(broker_url) as operator:
        assert [record.active for record in operator.consumers("q")] == [True, False]
    first.cancel()
    publish(publisher, "q", 10, 11)
    assert second.drain(2, timeout_s=3) == [10, 11]


def test_the_next_takes_over_when_the_server_refuses_the_end_of_the_first(connect, redis_client):
    first, second = (Inbox(connect(polling_interval=600).channel(), single()) for _ in range(2))
    publisher = connect().channel()
    together(first, second, quiet_s=0.1)
    # More than any topology of the tests has.
    redis_client.config_set("min-replicas-to-write", 9)
    try:
        with pytest.raises(ServerUnavailable):
            first.cancel()
    finally:
        redis_client.config_set("min-replicas-to-write", 0)
    publish(publisher, "q", 1)
    assert second.drain(1, timeout_s=20) == [1]
    first.cancel()


def test_standbys_are_not_woken(connect, redis_client):
    active = Inbox(connect(polling_interval=600).channel(), single())
    standbys = [Inbox(connect(polling_interval=600).channel(), single()) for _ in range(3)]
    publisher = connect().channel()
    together(active, *standbys, quiet_s=0.1)
    redis_client.config_resetstat()
    for number in range(50):
        publish(publisher, "q", number)
        active.drain(number + 1)
    together(active, *standbys, quiet_s=0.1)
    # Per message: a publish, a claim, an ack.
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] <= 3 * 50 + 10


def test_what_the_active_one_has_not_seen_goes_back_before_the_next_one_begins(connect):
    first, second = (Inbox(connect().channel(), single(), prefetch=5, ack=False) for _ in range(2))
    publish(connect().channel(), "q", *range(10))
    first.drain(2)
    first.cancel()
    assert second.drain(5) == [2, 3, 4, 5, 6]


def test_a_closed_channel_s_messages_come_before_newer_ones(connect):
    first, second = (Inbox(connect().channel(), single(), prefetch=5, ack=False) for _ in range(2))
    publish(connect().channel(), "q", *range(10))
    first.drain(3)
    first.channel.close()
    assert second.drain(5) == [0, 1, 2, 3, 4]
    assert [message.delivery_info["redelivered"] for message in second.messages[:4]] == [True, True, True, False]


def test_a_dead_one_is_replaced_within_the_heartbeat_timeout_and_its_messages_come_first(connect):
    options = {"consumer_heartbeat_timeout": 1, "polling_interval": 600}
    frozen = connect(**options)
    first = Inbox(frozen.channel(), single(), prefetch=5, ack=False)
    second = Inbox(connect(**options, visibility_timeout=200).channel(), single(), prefetch=5, ack=False)
    publish(connect().channel(), "q", *range(10))
    first.drain(2)
    start = machine_time()
    frozen.transport.session.service.stop()
    assert second.drain(5, timeout_s=15) == [0, 1, 2, 3, 4]
    # What the last heartbeat has promised, the least timeout, and a look at the list.
    assert machine_time() - start < 10
    # The first one comes back: what is in its buffer is not its own any more.
    assert first.rest(0.2) == [0, 1]
    for message in first.messages + second.messages:
        message.ack()
    second.ack = True
    together(first, second)
    assert sorted(first.bodies + second.bodies) == sorted([*range(10), 0, 1])
    assert second.bodies == list(range(10))


def test_a_takeover_finds_what_the_dead_one_held_behind_many_claims_of_others(connect, redis_client):
    """A cancelled consumer finishes its work: what it holds stays its own. More of that than one claim looks at."""
    options = {"consumer_heartbeat_timeout": 1, "polling_interval": 600}
    frozen = connect(**options)
    first = Inbox(frozen.channel(), single(), prefetch=5, ack=False)
    second = Inbox(connect(**options, visibility_timeout=200).channel(), single(), prefetch=5, ack=False)
    publish(connect().channel(), "q", *range(6))
    first.drain(2)
    others = [f"0{number:018x}.other" for number in range(1_700)]
    due = (redis_client.time()[0] + 100) * 1000
    redis_client.zadd("messages_index:{q}", dict.fromkeys(others, due))
    frozen.transport.session.service.stop()
    assert second.drain(5, timeout_s=15) == [0, 1, 2, 3, 4]
    assert redis_client.zcount("messages_index:{q}", due, due) == len(others)
    assert not redis_client.hexists("meta:{q}", "takeover")


def test_a_lost_connection_passes_the_queue_on_without_waiting_for_the_heartbeat_timeout(connect):
    lost = connect()
    Inbox(lost.channel(), single())
    second = Inbox(connect().channel(), single())
    lost.transport.delivery_loop.server.session.wakeup_connection.abort()
    lost.transport.session.broken = True
    lost.collect()
    publish(connect().channel(), "q", 1)
    assert second.drain(1, timeout_s=5) == [1]


def break_connection(connection):
    connection.transport.session.abandon()
    connection.collect()


def test_what_a_broken_connection_held_is_back_before_the_next_one_begins(connect, monkeypatch):
    broken = connect()
    first, second = (Inbox(one.channel(), single(), prefetch=5, ack=False) for one in (broken, connect()))
    publish(connect().channel(), "q", *range(10))
    # Two are delivered, three wait in the buffer.
    first.drain(2)
    held, run = Lock(), ReconnectRecovery.run

    def run_alone(recovery):
        with held:
            run(recovery)

    monkeypatch.setattr(ReconnectRecovery, "run", run_alone)
    # A run that began before may look at the sessions that are broken by then.
    with held:
        break_connection(broken)
        assert second.rest(0.3) == []
    assert second.drain(5) == [0, 1, 2, 3, 4]
    assert [message.delivery_info["redelivered"] for message in second.messages] == [True, True, False, False, False]


def test_one_that_lost_its_place_and_got_it_back_unawares_delivers_in_order(connect):
    """It has neither claimed nor heard in between: what is in its buffer goes back before it gets what is behind that."""
    first = Inbox(connect(overfetch_factor=3, polling_interval=600).channel(), single(), prefetch=2, ack=False)
    second = Inbox(connect(polling_interval=600).channel(), single())
    publisher = connect().channel()
    publish(publisher, "q", *range(4))
    # Two are delivered, two wait in the buffer.
    first.drain(2)
    wait_until(lambda: (first.pump(0.05), publisher.queue_sizes("q").unacked == 4)[1])
    consumers, consumer = listed(first)
    consumers.leave("q", consumer.id)
    consumers.join(consumer)
    second.cancel()
    publish(publisher, "q", 4, 5)
    first.rest()
    for message in first.messages:
        message.ack()
    first.ack = True
    assert first.drain(6) == list(range(6))


def leave_the_list(redis_client, inbox):
    """Take a consumer off its queue's list, as if it had died: it does not enter itself again. Return the list and it."""
    inbox.connection.transport.session.service.stop()
    consumers, consumer = listed(inbox)
    redis_client.zrem("consumers:{q}", consumer.id)
    return consumers, consumer


def test_a_takeover_leaves_what_a_session_holds_that_came_back(connect, redis_client):
    first = Inbox(connect(polling_interval=600, visibility_timeout=200).channel(), single(), prefetch=2, ack=False)
    second = Inbox(connect(polling_interval=600).channel(), single(), prefetch=5, ack=False)
    publish(connect().channel(), "q", *range(4))
    first.drain(2)
    consumers, consumer = leave_the_list(redis_client, first)
    Inbox(connect().channel(), single())
    assert redis_client.hget("meta:{q}", "takeover") == consumer.id.partition(".")[0].encode()
    consumers.join(consumer)
    assert second.drain(2) == [2, 3]
    assert [redis_client.hget(key, "claim") for key in redis_client.keys("message:{q}:*")] == [b"1"] * 4


def test_what_two_held_that_died_one_behind_the_other_comes_first(connect, redis_client):
    first, second, third = (
        Inbox(connect(polling_interval=600, visibility_timeout=seconds).channel(), single(), prefetch=2, ack=False)
        for seconds in (200, 210, 220)
    )
    publish(connect().channel(), "q", *range(4))
    first.drain(2)
    for inbox in (first, second):
        leave_the_list(redis_client, inbox)
        Inbox(connect().channel(), single())
    assert third.drain(2) == [0, 1]


def test_a_takeover_that_another_death_interrupts_begins_anew(connect, redis_client):
    first = Inbox(connect(polling_interval=600, visibility_timeout=200).channel(), single(), prefetch=2, ack=False)
    second = Inbox(connect(polling_interval=600).channel(), single(), prefetch=2, ack=False)
    publish(connect().channel(), "q", *range(4))
    first.drain(2)
    # Where a takeover has come to by pages.
    redis_client.hset("meta:{q}", "takeover_at", "9999999999999/last")
    leave_the_list(redis_client, first)
    assert second.drain(2) == [0, 1]


def test_the_next_one_begins_when_the_worker_of_a_broken_connection_has_decided_what_it_keeps(connect):
    broken = connect()
    first, second = (Inbox(one.channel(), single(), prefetch=5, ack=False) for one in (broken, connect()))
    publish(connect().channel(), "q", *range(10))
    first.drain(3)
    worker = KnownWorker()
    set_keeper(worker)
    try:
        break_connection(broken)
        assert second.rest(0.3) == []
        worker.active = {0}
        assert second.drain(5) == [1, 2, 3, 4, 5]
        first.messages[0].ack()
    finally:
        set_keeper(None)


def test_a_worker_that_does_not_decide_holds_up_the_next_one_for_a_while_only(connect):
    options = {"consumer_heartbeat_timeout": 1.5}
    broken = connect(**options)
    first, second = (Inbox(one.channel(), single(), prefetch=1, ack=False) for one in (broken, connect(**options)))
    publish(connect().channel(), "q", 0, 1)
    first.drain(1)
    set_keeper(KnownWorker())
    try:
        break_connection(broken)
        assert second.drain(1, timeout_s=5) == [1]
    finally:
        set_keeper(None)


def test_of_the_waiting_ones_the_highest_priority_is_next(connect, broker_url):
    first = Inbox(connect().channel(), single())
    Inbox(connect().channel(), single())
    third = Inbox(connect().channel(), single(consumer_arguments={"x-priority": 3}))
    first.cancel()
    publish(connect().channel(), "q", 1)
    assert third.drain(1, timeout_s=5) == [1]


def test_a_waiting_one_of_a_higher_priority_does_not_hold_up_the_active_one(connect):
    first = Inbox(connect(polling_interval=600).channel(), single(), prefetch=1)
    Inbox(connect().channel(), single(consumer_arguments={"x-priority": 3}))
    publish(connect().channel(), "q", *range(10))
    start = machine_time()
    assert first.drain(10, timeout_s=20) == list(range(10))
    # Each claim would wait for a second.
    assert machine_time() - start < 5


def test_a_message_cannot_be_got_one_at_a_time(connect):
    channel = connect().channel()
    declare(channel, "q", arguments=SINGLE)
    with pytest.raises(ChannelError, match="single active consumer") as caught:
        channel.basic_get("q")
    assert caught.value.code == 405


def test_each_change_is_counted(connect, redis_client):
    inboxes = [Inbox(connect().channel(), single()) for _ in range(3)]
    for expected, inbox in enumerate(inboxes, start=1):
        assert int(redis_client.hget("meta:{q}", "activations")) == expected
        inbox.cancel()
    assert redis_client.hget("meta:{q}", "active") is None


def test_a_consumer_that_comes_to_an_empty_queue_is_the_active_one_at_once(connect):
    channel = connect().channel()
    declare(channel, "q", arguments=SINGLE)
    publish(channel, "q", 1)
    inbox = Inbox(channel, single())
    assert inbox.drain(1, timeout_s=3) == [1]
    inbox.cancel()
    publish(channel, "q", 2)
    later = Inbox(channel, single())
    assert later.drain(1, timeout_s=3) == [2]


def test_two_channels_of_one_connection_are_two_consumers(connection):
    inboxes = [Inbox(connection.channel(), single()) for _ in range(2)]
    publish(connection.channel(), "q", *range(4))
    wait_until(lambda: (inboxes[0].pump(0.05), sum(len(inbox.messages) for inbox in inboxes) == 4)[1])
    assert inboxes[0].bodies == list(range(4))
