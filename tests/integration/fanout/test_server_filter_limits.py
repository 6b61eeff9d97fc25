"""What a subscriber with `x-server-filter` has not processed counts for the limits of its exchange (issue 19)."""

from __future__ import annotations

import threading
import time

import kombu
import pytest

from celery_redis_plus.errors import QueueFull
from celery_redis_plus.signals import Missed
from tests.integration.fanout.filtering import CURSORS, META, keyed
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until

PENDING = """
local count = tonumber(redis.call('HGET', 'fanout:{/0.news}', 'count') or 0)
local slowest = redis.call('ZRANGE', 'cursors:{/0.news}', 0, 0, 'WITHSCORES')[2]
return math.max(0, count - tonumber(slowest == 'inf' and count or slowest or count))
"""


def limited(**arguments):
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return kombu.Exchange("news", "fanout", durable=True, arguments=table)


@pytest.mark.parametrize("overflow", ["block", "reject-publish", "drop-head"])
def test_what_does_not_match_fills_no_limit(connect, overflow, redis_client):
    of = limited(max_pending=3, max_length_bytes=3000, overflow=overflow)
    inbox = Inbox(connect().channel(), keyed("a", of=of))
    channel = connect(publish_timeout=5).channel()
    publisher = kombu.Producer(channel, of)
    for _ in range(50):
        publisher.publish("x" * 500, routing_key="b")
    publisher.publish(1, routing_key="a")
    assert inbox.drain(1) == [1]
    wait_until(lambda: redis_client.zrange(CURSORS, 0, 0, withscores=True)[0][1] == float("inf"))
    for _ in range(50):
        publisher.publish("x" * 500, routing_key="b")
    assert redis_client.hmget(META, "count", "rejected", "blocked", "dropped") == [b"101", None, None, None]


def test_a_full_exchange_refuses_because_of_what_it_has_not_processed(connect, redis_client):
    of = limited(max_pending=3, overflow="reject-publish")
    inbox = Inbox(connect().channel(), keyed("a", of=of), ack=False)
    publish = kombu.Producer(connect().channel(), of).publish
    publish(0, routing_key="b")
    publish(1, routing_key="a")
    publish(2, routing_key="b")
    publish(3, routing_key="b")
    with pytest.raises(QueueFull):
        publish(4, routing_key="b")
    inbox.drain(1)
    inbox.messages[0].ack()
    wait_until(lambda: redis_client.zrange(CURSORS, 0, 0, withscores=True)[0][1] == float("inf"))
    publish(5, routing_key="b")


def test_bytes_count_from_the_first_that_it_has_not_processed(connect, redis_client):
    of = limited(max_length_bytes=2500, overflow="reject-publish")
    Inbox(connect().channel(), keyed("a", of=of), ack=False)
    publish = kombu.Producer(connect().channel(), of).publish
    for _ in range(10):
        publish("x" * 800, routing_key="b")
    publish("x" * 800, routing_key="a")
    publish("x" * 800, routing_key="b")
    with pytest.raises(QueueFull):
        publish("x" * 800, routing_key="b")


def test_a_blocked_publisher_goes_on_after_the_ack_of_the_only_match(connect, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.broker.flow_control.controller.WAITER_CHECK_S", 60.0)
    of = limited(max_pending=100, overflow="block")
    inbox = Inbox(connect().channel(), keyed("a", of=of), ack=False)
    publish = kombu.Producer(connect().channel(), of).publish
    publish(1, routing_key="a")
    for _ in range(99):
        publish(2, routing_key="b")
    thread = threading.Thread(target=publish, args=("waited",), kwargs={"routing_key": "a"})
    thread.start()
    inbox.drain(1)
    inbox.rest()
    assert thread.is_alive()
    inbox.messages[0].ack()
    assert inbox.drain(2) == [1, "waited"]
    thread.join(10)


@pytest.mark.not_on("cluster", "cluster-tls", reason="its script names keys of one server")
def test_publishers_never_exceed_the_limit_and_lose_nothing(connect, redis_client):
    of = limited(max_pending=20, overflow="block")
    inbox = Inbox(connect().channel(), keyed("a", of=of))
    everything = Inbox(connect().channel(), kombu.Queue("all", of, routing_key="#", durable=True))
    failures, publishing = [], True

    def publish(name):
        channel = connect().channel()
        try:
            for number in range(150):
                kombu.Producer(channel, of).publish([name, number], routing_key="ab"[number % 2])
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    def sample():
        while publishing:
            samples.append(redis_client.eval(PENDING, 0))

    samples = []
    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    sampler = threading.Thread(target=sample)
    for thread in (*threads, sampler):
        thread.start()
    deadline = time.monotonic() + 60
    while len(inbox.messages) < 300 or len(everything.messages) < 600:
        assert time.monotonic() < deadline, (len(inbox.messages), len(everything.messages), failures)
        inbox.pump(0.01)
        everything.pump(0.01)
    for thread in threads:
        thread.join(10)
    publishing = False
    sampler.join(10)
    assert failures == []
    assert inbox.bodies == [body for body in everything.bodies if body[1] % 2 == 0]
    assert 0 < max(samples) <= 20


def test_drop_head_drops_what_matched_and_it_is_told(connect, noticed):
    of = limited(max_pending=3)
    connection = connect()
    queue = keyed("a", of=of)
    queue(connection.channel()).declare()
    publish = kombu.Producer(connect().channel(), of).publish
    for number in range(8):
        publish(number, routing_key="a" if number in {2, 3, 7} else "b")
    assert Inbox(connection.channel(), queue).drain(1) == [7]
    assert [one.count for one in noticed if isinstance(one, Missed)] == [2]
