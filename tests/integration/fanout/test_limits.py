"""Limits of a fanout exchange: what its subscribers have not processed holds publishers up."""

from __future__ import annotations

import threading

import kombu
import pytest

import celery_redis_plus
from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from celery_redis_plus.errors import InvalidArgument, MessageNotAccepted, PublisherBlocksItself, PublishTimedOut, QueueFull
from celery_redis_plus.signals import Missed
from tests.integration.fanout.conftest import NEWS
from tests.support.inbox import Inbox
from tests.support.publishers import wake_only
from tests.support.waiting import wait_until

META = "fanout:{/0.limited}"


def exchange(**arguments):
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return kombu.Exchange("limited", "fanout", durable=True, arguments=table)


def queue(of, name="q", **arguments):
    return kombu.Queue(name, of, durable=True, queue_arguments=arguments or None)


def sender(channel, of):
    producer = kombu.Producer(channel, of)
    return producer.publish


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_publisher_waits_until_the_slowest_subscriber_has_processed_enough(connect, no_ack, redis_client, monkeypatch):
    wake_only(monkeypatch)
    of = exchange(max_pending=3, overflow="block")
    subscriber = connect().channel()
    inbox = Inbox(subscriber, queue(of), ack=False, no_ack=no_ack)
    # So that its last look comes too late for this test.
    publish = sender(connect(publish_timeout=120).channel(), of)
    for body in range(3):
        publish(body)
    thread = threading.Thread(target=publish, args=("waited",))
    thread.start()
    wait_until(lambda: redis_client.zcard("waiting_publishers:{/0.limited}") == 1)
    assert inbox.drain(3) == [0, 1, 2]
    if not no_ack:
        inbox.rest(quiet_s=0.2)
        assert thread.is_alive()
        inbox.messages[0].ack()
    assert inbox.drain(4)[3:] == ["waited"]
    thread.join(5)
    assert redis_client.hget(META, "blocked") == b"1"
    assert not redis_client.exists("waiting_publishers:{/0.limited}")


def test_all_who_fit_come_in_one_after_the_other_at_a_limit_of_bytes(connect, redis_client, monkeypatch):
    wake_only(monkeypatch)
    of = exchange(max_length_bytes=10_000, overflow="block")
    inbox = Inbox(connect().channel(), queue(of), ack=False)
    sender(connect().channel(), of)("x" * 9500)
    publishers = [sender(connect(publish_timeout=120).channel(), of) for _ in range(6)]
    threads = [threading.Thread(target=publish, args=("y" * 200,)) for publish in publishers]
    for thread in threads:
        thread.start()
    wait_until(lambda: redis_client.zcard("waiting_publishers:{/0.limited}") == len(threads))
    inbox.drain(1)
    inbox.messages[0].ack()
    assert inbox.drain(1 + len(threads))[1:] == ["y" * 200] * len(threads)
    for thread in threads:
        thread.join(5)


def test_without_room_in_time_nothing_is_stored(connect, redis_client):
    of = exchange(max_pending=1, overflow="block")
    inbox = Inbox(connect().channel(), queue(of))
    publish = sender(connect(publish_timeout=0.2).channel(), of)
    publish(1)
    with pytest.raises(PublishTimedOut, match=r"exchange 'limited' stayed full for 0\.2 s"):
        publish(2)
    assert redis_client.hmget(META, "count", "rejected") == [b"1", b"1"]
    assert inbox.drain(1) == [1]


def test_a_full_exchange_refuses(connect, redis_client):
    of = exchange(max_pending=2, overflow="reject-publish")
    inbox = Inbox(connect().channel(), queue(of))
    publish = sender(connect().channel(), of)
    publish(1)
    publish(2)
    with pytest.raises(QueueFull, match="exchange 'limited' is full: x-max-pending is 2, it has 2; the message is not in it"):
        publish(3)
    assert inbox.drain(2) == [1, 2]
    assert redis_client.hget(META, "rejected") == b"1"


def test_drop_head_drops_the_oldest_and_subscribers_learn_how_many(connect, redis_client, noticed, caplog):
    of = exchange(max_pending=3)
    connection = connect()
    queue(of)(connection.channel()).declare()
    publish = sender(connect().channel(), of)
    for body in range(8):
        publish(body)
    inbox = Inbox(connection.channel(), queue(of))
    assert inbox.drain(3) == [5, 6, 7]
    assert [one.count for one in noticed if isinstance(one, Missed)] == [5]
    assert redis_client.hget(META, "dropped") == b"5"
    assert "exchange 'limited' is full" in caplog.text


def test_bytes_of_what_is_not_processed_are_limited(connect, redis_client):
    of = exchange(max_length_bytes=2500, overflow="reject-publish")
    inbox = Inbox(connect().channel(), queue(of))
    publish = sender(connect().channel(), of)
    publish("x" * 1000)
    publish("y" * 1000)
    with pytest.raises(QueueFull, match="x-max-length-bytes is 2500"):
        publish("z" * 1000)
    with pytest.raises(QueueFull, match="x-max-length-bytes is 2500"):
        publish("z" * 3000)
    inbox.drain(2)
    wait_until(lambda: not unread(redis_client), message="the subscriber reports")
    publish("z" * 1000)
    assert inbox.drain(3)[2:] == ["z" * 1000]


def unread(client):
    lowest = client.zrange("cursors:{/0.limited}", 0, 0, withscores=True)
    return int(client.hget(META, "count")) - int(lowest[0][1])


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head"])
def test_an_entry_by_somebody_else_ends_no_publish(connect, redis_client, overflow):
    of = exchange(max_length_bytes=2500, overflow=overflow)
    inbox = Inbox(connect().channel(), queue(of))
    publish = sender(connect().channel(), of)
    for fields in ({"x": "y"}, {"head": "text", "payload": "x"}):
        redis_client.xadd("/0.limited", fields)
    publish("x" * 1000)
    publish("y" * 1000)
    if overflow == "drop-head":
        publish("z" * 1000)
        assert inbox.drain(2) == ["y" * 1000, "z" * 1000]
    else:
        with pytest.raises(QueueFull, match="x-max-length-bytes is 2500"):
            publish("z" * 1000)
        assert inbox.drain(2) == ["x" * 1000, "y" * 1000]


def test_drop_head_keeps_the_bytes_within_the_limit(connect, redis_client, noticed):
    of = exchange(max_length_bytes=2500)
    connection = connect()
    queue(of)(connection.channel()).declare()
    publish = sender(connect().channel(), of)
    for body in "abcdef":
        publish(body * 1000)
    assert Inbox(connection.channel(), queue(of)).drain(2) == ["e" * 1000, "f" * 1000]
    assert [one.count for one in noticed if isinstance(one, Missed)] == [4]


def test_an_exchange_accepts_by_type(connect, redis_client):
    of = exchange(accept_types=["order"])
    inbox = Inbox(connect().channel(), queue(of))
    publish = sender(connect().channel(), of)
    publish(1, type="order")
    with pytest.raises(MessageNotAccepted, match="exchange 'limited' accepts 'order'"):
        publish(2, type="bill")
    assert inbox.drain(1) == [1]
    assert redis_client.hget(META, "rejected") == b"1"


def test_an_exchange_accepts_by_what_the_publishing_process_says(connect):
    of = exchange()
    inbox = Inbox(connect().channel(), queue(of))
    publish = sender(connect(accept={"limited": lambda view: view.payload == 1}).channel(), of)
    publish(1)
    with pytest.raises(MessageNotAccepted, match="exchange 'limited' accepts"):
        publish(2)
    assert inbox.drain(1) == [1]


def test_publishers_slow_down_before_the_exchange_is_full(connect, redis_client):
    of = exchange(max_pending=100, overflow="block", throttle=0.99)
    connection = connect()
    queue(of)(connection.channel()).declare()
    publish = sender(connect().channel(), of)
    for body in range(5):
        publish(body)
    throttled, slept_us = map(int, redis_client.hmget(META, "throttled", "throttled_us"))
    assert throttled == 3
    assert slept_us > 3 * 1e6 / 100


def test_a_suspect_subscriber_holds_nobody_up(connect, redis_client):
    of = exchange(max_pending=1, overflow="reject-publish")
    connection = connect()
    queue(of)(connection.channel()).declare()
    publish = sender(connect().channel(), of)
    publish(1)
    with pytest.raises(QueueFull):
        publish(2)
    [name] = redis_client.zrange("subscribers:{/0.limited}", 0, 0)
    redis_client.zadd("subscribers:{/0.limited}", {name: 1})
    publish(2)


def test_a_subscriber_counts_behind_many_that_are_gone(connect, redis_client):
    of = exchange(max_pending=1, overflow="reject-publish")
    connection = connect()
    queue(of)(connection.channel()).declare()
    redis_client.zadd("cursors:{/0.limited}", {f"gone{number}": -1 for number in range(25)})
    publish = sender(connect().channel(), of)
    publish(1)
    with pytest.raises(QueueFull):
        publish(2)


def test_a_publisher_that_waits_for_a_lost_subscriber_is_woken(connect, redis_client):
    of = exchange(max_pending=1, overflow="block")
    channel = connect().channel()
    queue(of)(channel).declare()
    sender(connect().channel(), of)(1)
    redis_client.zadd("waiting_publishers:{/0.limited}", {"publisher": 1})
    keys = channel.session.fanout_keys("limited")
    registry = SubscriberRegistry(channel.session.commands, timeout_s=300, max_age_s=None)
    [process] = registry.processes_of(keys, [one.id for one in channel.fanout_subscribers("limited")])
    assert registry.suspect(keys, process, b"") == b""
    assert redis_client.exists("waiting_publishers:{/0.limited}:publisher")


def test_a_durable_subscriber_counts_while_it_is_away(connect):
    of = exchange(max_pending=1, overflow="reject-publish")
    connection = connect()
    durable = queue(of, "kept", **{"x-durable-subscriber": True})
    durable(connection.channel()).declare()
    connection.close()
    publish = sender(connect().channel(), of)
    publish(1)
    with pytest.raises(QueueFull):
        publish(2)
    assert Inbox(connect().channel(), durable).drain(1) == [1]
    publish(2)


def test_an_exchange_without_subscribers_is_never_full(connect):
    of = exchange(max_pending=1, overflow="reject-publish")
    publish = sender(connect().channel(), of)
    for body in range(3):
        publish(body)


def test_a_publisher_learns_limits_that_another_process_declared(connect):
    plain = connect().channel()
    NEWS(plain).declare()
    sender(plain, NEWS)(1)
    other = connect().channel()
    other.exchange_delete("news")
    limited = kombu.Exchange("news", "fanout", durable=True, arguments={"x-max-pending": 1, "x-overflow": "reject-publish"})
    queue(limited)(other).declare()
    publish = sender(plain, kombu.Exchange("news", "fanout", durable=True, passive=True))
    publish(2)
    with pytest.raises(QueueFull):
        publish(3)


def test_a_subscriber_that_publishes_into_its_own_full_exchange_is_told(connect):
    of = exchange(max_pending=1, overflow="block")
    channel = connect().channel()
    publish, raised = sender(channel, of), []

    def callback(_body, message):
        with pytest.raises(PublisherBlocksItself, match="exchange 'limited' is full, and only this thread") as error:
            publish("more")
        raised.append(error)
        message.ack()

    with kombu.Consumer(channel, [queue(of)], callbacks=[callback]):
        publish("first")
        channel.connection.client.drain_events(timeout=10)
    assert raised


def test_the_limits_come_back_after_a_flush(connect, redis_client):
    of = exchange(max_pending=1, overflow="reject-publish")
    inbox = Inbox(connect().channel(), queue(of))
    publish = sender(connect().channel(), of)
    publish(1)
    inbox.drain(1)
    redis_client.flushdb()
    wait_until(lambda: redis_client.hexists(META, "limited"), 20, message="the subscriber's process declares the exchange again")


def test_a_tracked_broadcast_that_is_refused_is_resolved_for_all_recipients(connect, redis_client):
    of = exchange(max_pending=1, overflow="reject-publish")
    connection = connect()
    Inbox(connection.channel(), queue(of))
    celery_redis_plus.broadcast(1, "limited", connection=connection)
    with pytest.raises(QueueFull):
        celery_redis_plus.broadcast(2, "limited", connection=connection)
    [refused] = [record for record in map(redis_client.hgetall, redis_client.keys("track:*}")) if b"refused" in record.values()]
    assert refused[b"open"] == b"0"


@pytest.mark.parametrize(
    ("kind", "arguments", "error"),
    [
        ("fanout", {"x-max-pending": 0}, "argument 'x-max-pending' of exchange 'e' is 0 .int.; allowed is a whole number from 1"),
        ("fanout", {"x-max-length": 5}, "argument 'x-max-length' of exchange 'e' is 5; allowed is 'x-max-pending'"),
        ("fanout", {"x-overflow": "block"}, "without a limit"),
        ("fanout", {"x-accept-types": ["a"], "x-throttle": True}, "allowed only beside 'x-max-pending'"),
        ("fanout", {"x-max-pending": 5, "x-overflow": "reject-publish-dlx"}, "allowed is one of"),
        ("direct", {"x-max-pending": 5}, "allowed for fanout exchanges"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(channel, kind, arguments, error):
    with pytest.raises(InvalidArgument, match=error):
        channel.exchange_declare("e", kind, arguments=arguments)
