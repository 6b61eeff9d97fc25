"""Who consumes a queue, as the server knows it."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta

import pytest

from celery_redis_plus import clock
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.consumers.registry import INTERESTED, NOT_INTERESTED, Consumer, Consumers
from celery_redis_plus.errors import AccessRefused, QueueNotFound
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

KEYS = Keys()


@pytest.fixture
def operator(broker_url):
    with BrokerAdmin(broker_url) as operator:
        yield operator


def test_a_consumer_is_listed_as_soon_as_it_consumes(connect, operator):
    inbox = Inbox(connect().channel(), "q", prefetch=2, ack=False)
    (record,) = operator.consumers("q")
    assert (record.host, record.pid, record.queue, record.priority) == (socket.gethostname(), os.getpid(), "q", 0)
    assert record.tag == inbox.channel.queue_consumers.consumers["q"].tag
    assert not record.active
    assert timedelta(0) <= datetime.now(UTC) - record.since < timedelta(seconds=30)


def test_its_registration_keeps_a_transient_queue_for_as_long_as_it_counts(channel, redis_client):
    """Its process may stand still before its maintenance has begun."""
    declare(channel, "q", arguments={"x-expires": 10_000})
    assert redis_client.pttl("meta:{q}") <= 10_000
    Consumers(channel.session.commands, KEYS).join(Consumer("me.1", "q", "tag"))
    assert redis_client.pttl("meta:{q}") > 10_000


def test_held_messages_and_state_are_those_of_the_consumer(connect, operator):
    one, two = (Inbox(connect(consumer_heartbeat_timeout=1).channel(), "q", prefetch=2, ack=False) for _ in range(2))
    publish(one.channel, "q", 1, 2, 3)
    one.drain(2)
    two.drain(1)
    wait_until(lambda: [record.state for record in operator.consumers("q")] == [NOT_INTERESTED, INTERESTED])
    assert [record.held for record in operator.consumers("q")] == [2, 1]


def test_more_held_messages_than_fit_into_one_page_are_counted(connect, operator):
    inbox = Inbox(connect().channel(), "q", prefetch=1200, ack=False)
    publish(inbox.channel, "q", *range(1100))
    inbox.drain(1100)
    assert [record.held for record in operator.consumers("q")] == [1100]


def test_a_cancelled_consumer_leaves_at_once(connect, operator):
    one, two = (Inbox(connect().channel(), "q") for _ in range(2))
    assert len(operator.consumers("q")) == 2
    one.cancel()
    (left,) = operator.consumers("q")
    assert left.id == two.channel.queue_consumers.consumers["q"].id


def test_two_channels_of_one_connection_are_two_consumers(connection, operator):
    inboxes = [Inbox(connection.channel(), "q") for _ in range(2)]
    assert len({record.id for record in operator.consumers("q")}) == len(inboxes)


def test_the_consumer_of_a_lost_connection_leaves_without_waiting_for_its_time(connect, operator, redis_client):
    connection = connect()
    inbox = Inbox(connection.channel(), "q")
    (before,) = operator.consumers("q")
    inbox.channel.consumer_session.wakeup_connection.abort()
    inbox.channel.session.broken = True
    connection.collect()
    wait_until(lambda: operator.consumers("q") == [])
    Inbox(connect().channel(), "q")
    (after,) = operator.consumers("q")
    assert after.id != before.id


@pytest.mark.sample(1)
@pytest.mark.parametrize("process", ["silent", "gone"])
def test_a_consumer_whose_process_is_silent_counts_no_more_and_is_taken_off_the_list(connect, operator, redis_client, process):
    now_ms = datetime.now(UTC).timestamp() * 1000
    redis_client.zadd(KEYS.processes[1], {"silent": now_ms - 60_000})
    redis_client.zadd("consumers:{q}", {"dead.1": now_ms - 120_000})
    redis_client.hset("consumer:{q}:dead.1", mapping={"pid": 1, "process": process, "timeout": 1000})
    Inbox(connect(consumer_heartbeat_timeout=1).channel(), "q")
    assert "dead.1" not in {record.id for record in operator.consumers("q")}
    assert operator.overview_of("q").consumers == 1
    wait_until(lambda: redis_client.zcard("consumers:{q}") == 1 and not redis_client.exists("consumer:{q}:dead.1"))


def test_nobody_is_taken_off_the_list_while_no_process_was_heard(channel, redis_client):
    """After a pause of the server all are silent; those that live tell that first."""
    declare(channel, "q", arguments={"x-single-active-consumer": True})
    connection = channel.session.commands, channel.session.keys
    now_ms = datetime.now(UTC).timestamp() * 1000
    redis_client.zadd(KEYS.processes[1], {"other": now_ms - 60_000})
    redis_client.hset(KEYS.processes[2], mapping={"heard": int(now_ms - 60_000), "resumed": int(now_ms - 120_000)})
    crew = Consumers(*connection, process="mine", timeout_s=1)
    other = Consumers(*connection, process="other", timeout_s=1)
    other.join(Consumer("other.1", "q", "1"))
    redis_client.zadd("consumers:{q}", {"other.1": now_ms - 120_000})
    crew.join(Consumer("mine.1", "q", "2"))
    assert redis_client.hget("meta:{q}", "active") == b"other.1"
    # One was heard just now, and again after the timeout, and this one was not.
    redis_client.hset(KEYS.processes[2], mapping={"heard": int(now_ms), "resumed": int(now_ms - 2000)})
    crew.check_listed([Consumer("mine.1", "q", "2")])
    assert redis_client.hget("meta:{q}", "active") == b"other.1"
    redis_client.hset(KEYS.processes[2], "resumed", int(now_ms - 6000))
    crew.check_listed([Consumer("mine.1", "q", "2")])
    assert redis_client.hget("meta:{q}", "active") == b"mine.1"


@pytest.fixture
def crowd(channel, redis_client):
    """Twenty dead consumers of a queue with a single active one, the first of them that; processes are heard."""
    declare(channel, "q", arguments={"x-single-active-consumer": True})
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    redis_client.zadd(KEYS.processes[1], {"mine": now_ms + 60_000})
    redis_client.hset(KEYS.processes[2], mapping={"heard": now_ms + 500, "resumed": now_ms - 60_000})
    for number in range(20):
        redis_client.zadd("consumers:{q}", {f"dead{number:02}.1": now_ms - 120_000})
        redis_client.hset(f"consumer:{{q}}:dead{number:02}.1", mapping={"process": "gone", "timeout": 5000, "priority": 0})
    redis_client.hset("meta:{q}", mapping={"active": "dead00.1", "activations": 1})
    wait_until(lambda: datetime.now(UTC).timestamp() * 1000 >= now_ms + 500)
    return Consumers(channel.session.commands, channel.session.keys, process="mine", timeout_s=60)


def test_one_that_is_put_away_after_its_refusal_is_in_the_way_no_more(connect):
    channel = connect().channel()
    declare(channel, "q")
    other, mine = (Consumers(channel.session.commands, channel.session.keys, process=name, timeout_s=60) for name in "ab")
    other.join(Consumer("a.1", "q", "1", exclusive=True))

    def put_away(processes):
        """As the leader does with a lost process, whose record is gone then."""
        assert processes == ["a"]
        other.leave("q", "a.1")
        return False

    assert mine.join(Consumer("b.1", "q", "2"), have_ended=put_away) is False
    with pytest.raises(AccessRefused, match="has consumers"):
        other.join(Consumer("a.2", "q", "3", exclusive=True), have_ended=lambda _: False)


def test_a_crowd_of_dead_ones_does_not_get_the_queue_one_after_the_other(crowd, redis_client):
    mine = Consumer("mine.1", "q", "tag")
    crowd.join(mine)
    crowd.check_listed([mine])
    # Another dead one was chosen before a living one was there.
    assert redis_client.hmget("meta:{q}", "active", "activations") == [b"mine.1", b"3"]


def test_dead_ones_are_not_in_the_way_of_one_that_wants_the_queue_alone(crowd, redis_client):
    redis_client.hdel("meta:{q}", "active", "sac", "restricted")
    crowd.join(Consumer("mine.1", "q", "tag", exclusive=True))
    assert redis_client.zrange("consumers:{q}", 0, -1) == [b"mine.1"]


def test_nobody_is_dead_where_the_heartbeats_were_lost(crowd, redis_client):
    """An eviction, or somebody who deletes the key: each process has to tell first that it lives."""
    redis_client.delete(KEYS.processes[1])
    mine = Consumer("mine.1", "q", "tag")
    crowd.join(mine)
    crowd.check_listed([mine])
    assert redis_client.hget("meta:{q}", "active") == b"dead00.1"
    assert redis_client.zcard("consumers:{q}") == 21


def test_a_consumer_that_was_taken_for_dead_comes_back(connect, operator, redis_client):
    inbox = Inbox(connect(consumer_heartbeat_timeout=1).channel(), "q")
    (before,) = operator.consumers("q")
    redis_client.flushdb()
    declare(inbox.channel, "q")
    wait_until(lambda: [record.id for record in operator.consumers("q")] == [before.id])


def test_whoever_gets_messages_one_at_a_time_is_no_consumer(channel, operator):
    declare(channel, "q")
    publish(channel, "q", 1)
    assert channel.basic_get("q").payload == 1
    assert operator.consumers("q") == []


def test_consumers_of_an_unknown_queue_are_an_error(operator):
    with pytest.raises(QueueNotFound, match="'nothing'"):
        operator.consumers("nothing")


def test_a_queue_without_rules_costs_a_consumer_the_same_however_many_it_has(channel, redis_client):
    declare(channel, "q")
    consumers = channel.consumer_session.consumers

    def join_and_leave():
        redis_client.config_resetstat()
        consumers.join(Consumer("000000000000.1", "q", "tag"))
        consumers.leave("q", "000000000000.1")
        found = redis_client.info("commandstats")
        return sum(found[name]["calls"] for name in ("cmdstat_hmget", "cmdstat_hget", "cmdstat_zscore") if name in found)

    def come(numbers):
        for number in numbers:
            consumers.join(Consumer(f"{number:012x}.1", "q", "tag"))

    # A few others may be dead, and are looked at.
    come(range(1, 20))
    few = join_and_leave()
    come(range(20, 200))
    assert join_and_leave() == few


def test_a_new_consumer_makes_no_look_for_the_others_due(connect, monkeypatch):
    # The first looks come after a third of it.
    channel = connect(consumer_heartbeat_timeout=9).channel()
    Inbox(channel, *(f"q{number}" for number in range(60)))
    lists = channel.session.service.consumer_lists
    looked_for = []

    def note(name, check):
        def noted(consumers, checked, *more):
            looked_for.extend(consumer.queue for consumer in checked)
            return check(consumers, checked, *more)

        monkeypatch.setattr(Consumers, name, noted)

    # Also those that go with a heartbeat.
    for name in ("check_listed", "check_listed_nowait"):
        note(name, getattr(Consumers, name))
    wait_until(lambda: len(looked_for) >= 60 and lists.next_run_at > clock.now_s() + 2)
    looked_for.clear()
    Inbox(channel, "new")
    wait_until(lambda: "new" in looked_for)
    assert set(looked_for) == {"new"}
