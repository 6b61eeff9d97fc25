"""Prefetch bounds broadcasts, and nobody who takes nothing holds up others."""

from __future__ import annotations

import threading

import kombu
import pytest

from celery_redis_plus.broker.fanout import reader, subscription
from tests.integration.fanout.conftest import NEWS, news, send
from tests.support.inbox import Inbox, declare, drain_all, publish
from tests.support.waiting import wait_until


def test_no_more_than_the_prefetch_is_delivered_and_not_settled(channel):
    inbox = Inbox(channel, news(), prefetch=3, ack=False)
    send(channel, *range(10))
    assert inbox.exactly(3) == [0, 1, 2]
    inbox.messages[1].ack()
    assert inbox.exactly(4) == [0, 1, 2, 3]
    for message in inbox.messages:
        if not message.acknowledged:
            message.ack()
    assert len(inbox.rest()) == 7


@pytest.mark.parametrize(("settlement", "bodies"), [("ack", [1, 2]), ("reject", [1, 2]), ("requeue", [1, 1])])
def test_a_settlement_in_another_thread_wakes_a_subscriber_without_credit(connect, sleeps, settlement, bodies):
    inbox = Inbox(connect(polling_interval=600).channel(), news(), prefetch=1, ack=False)
    send(connect().channel(), 1, 2)
    inbox.drain(1)
    sleeps.clear()
    consuming = threading.Thread(target=inbox.drain, args=(2, 20))
    consuming.start()
    assert sleeps.wait(10)
    getattr(inbox.messages[0], settlement)()
    consuming.join(10)
    assert inbox.bodies == bodies


def test_broadcasts_and_messages_share_the_prefetch(channel):
    inbox = Inbox(channel, news(), "work", prefetch=4, ack=False)
    send(channel, *range(10))
    publish(channel, "work", *range(10))
    assert len(inbox.rest()) == 4


def test_a_subscriber_that_takes_nothing_does_not_hold_up_its_neighbour(connection, monkeypatch):
    """On one connection, and over many more broadcasts than a buffer holds; then it goes on where it was, without a gap."""
    monkeypatch.setattr(subscription, "MAX_BUFFERED", 50)
    slow = Inbox(connection.channel(), news("slow"), prefetch=1, ack=False)
    fast = Inbox(connection.channel(), news("fast"))
    send(connection.default_channel, *range(1000))
    drain_all([fast, slow], 1001)
    assert fast.bodies == list(range(1000))
    assert slow.bodies == [0]
    assert connection.transport.delivery_loop.server.session.reader.buffered <= 50 + reader.STREAM_PAGE
    slow.ack = True
    slow.messages[0].ack()
    assert slow.drain(1000) == list(range(1000))
    assert len(fast.messages) == 1000


def test_lag_of_the_slow_one_is_visible_and_the_others_is_none(connect):
    slow = Inbox(connect().channel(), news("slow"), prefetch=1, ack=False)
    fast = Inbox(connect().channel(), news("fast"))
    publisher = connect().channel()
    send(publisher, *range(100))
    fast.drain(100)
    slow.drain(1)
    wait_until(lambda: {one.queue: one.lag for one in publisher.fanout_subscribers("news")} == {"slow": 100, "fast": 0})
    assert [one.queue for one in publisher.fanout_subscribers("news")] == ["slow", "fast"]


def test_a_flood_of_broadcasts_does_not_starve_the_queues_of_the_same_consumer(connect):
    channel = connect().channel()
    inbox = Inbox(channel, news(), "work")
    publisher = connect().channel()
    send(publisher, *(f"b{number}" for number in range(2000)))
    publish(publisher, "work", *range(20))
    received = inbox.drain(2020)
    last_job = max(at for at, body in enumerate(received) if isinstance(body, int))
    assert last_job < 1500


def test_a_flood_of_messages_does_not_starve_broadcasts(connect):
    channel = connect().channel()
    declare(channel, "work")
    publisher = connect().channel()
    inbox = Inbox(channel, news(), "work")
    publish(publisher, "work", *range(1000))
    inbox.drain(1)
    send(publisher, "b")
    received = inbox.drain(1001)
    assert received.index("b") < 900


@pytest.mark.parametrize("headers", [{"nested": {"x": [1]}}, {"flat": 1}, {"list": [1]}])
def test_each_consumer_may_change_its_copy(connection, headers):
    """Both decode the same entry, which is read once; and their envelopes are alike."""
    changed, untouched = Inbox(connection.channel(), news("a")), Inbox(connection.channel(), news("b"))
    producer = kombu.Producer(connection.default_channel, NEWS)
    for _ in range(2):
        producer.publish({"list": [1]}, headers=headers)
    drain_all([changed, untouched], 4)
    for message in changed.messages:
        for value in message.headers.values():
            if isinstance(value, list):
                value.append(2)
        message.headers.setdefault("nested", {"x": []})["x"].append(2)
        message.headers["flat"] = 2
        message.payload["list"].append(2)
        message.properties["priority"] = 9
        message.properties["delivery_info"]["exchange"] = "another"
    for message in untouched.messages:
        assert message.headers == headers
        assert message.payload == {"list": [1]}
        assert message.properties["priority"] == 0
        assert message.delivery_info["exchange"] == "news"
