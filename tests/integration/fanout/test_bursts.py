"""What one read has brought is delivered together, where that keeps nothing else waiting."""

from __future__ import annotations

import time

import pytest

from celery_redis_plus.consumer import delivery_loop, server_consumer
from tests.integration.fanout.conftest import news, send
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

FEW = server_consumer.BROADCASTS_IN_A_ROW


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A burst is not cut short by a machine that stands still for a moment."""
    monkeypatch.setattr(delivery_loop, "TICK_BUDGET_S", 60)


def test_one_call_delivers_what_a_read_has_brought_in_order(channel):
    inbox = Inbox(channel, news())
    send(channel, *range(FEW))
    inbox.pump(5)
    assert inbox.bodies == list(range(FEW))


def test_one_call_delivers_no_more_than_the_prefetch(channel):
    inbox = Inbox(channel, news(), prefetch=2, ack=False)
    send(channel, *range(FEW))
    inbox.pump(5)
    assert inbox.bodies == [0, 1]


def test_a_slow_consumer_gets_one_a_call(channel, monkeypatch):
    """So `drain_events` returns to a program that looks at something else between its calls."""
    monkeypatch.setattr(delivery_loop, "TICK_BUDGET_S", 0.010)
    inbox = Inbox(channel, news())
    inbox.consumer.on_message = lambda message: (inbox._take(message), time.sleep(0.020))  # noqa: SLF001 - ours
    send(channel, 1, 2, 3)
    inbox.pump(5)
    assert inbox.bodies == [1]
    assert inbox.drain(3) == [1, 2, 3]


def test_what_follows_an_error_of_the_application_is_delivered_by_the_next_call(channel):
    inbox = Inbox(channel, news())

    def fail_first(message):
        inbox._take(message)  # noqa: SLF001 - ours
        if len(inbox.messages) == 1:
            raise LookupError("the application's own")

    inbox.consumer.on_message = fail_first
    send(channel, 1, 2, 3)
    with pytest.raises(LookupError):
        inbox.pump(5)
    assert inbox.drain(3) == [1, 2, 3]


def test_a_consumer_that_cancels_itself_gets_nothing_more(channel):
    inbox = Inbox(channel, news())
    inbox.consumer.on_message = lambda message: (inbox._take(message), inbox.cancel())  # noqa: SLF001 - ours
    send(channel, 1, 2, 3)
    inbox.pump(5)
    assert inbox.exactly(1) == [1]


def test_a_connection_that_is_closed_by_its_consumer_delivers_nothing_more(connect):
    connection = connect()
    inbox = Inbox(connection.channel(), news())
    inbox.consumer.on_message = lambda message: (inbox.messages.append(message), connection.close())
    send(connect().channel(), 1, 2, 3)
    inbox.pump(5)
    assert len(inbox.messages) == 1


def test_messages_of_queues_come_one_a_call_and_between_bursts(connect):
    channel = connect().channel()
    inbox = Inbox(channel, news(), "work")
    publisher = connect().channel()
    publish(publisher, "work", "a", "b")
    send(publisher, *range(3 * FEW))
    wait_until(lambda: inbox.pump(5) and "a" in inbox.bodies)
    assert len(inbox.bodies) <= 2 * FEW + 1
    assert sorted(inbox.drain(3 * FEW + 2), key=str) == sorted([*range(3 * FEW), "a", "b"], key=str)


def test_a_single_broadcast_after_a_flood_is_not_held_back_for_long(channel):
    """The rests of a flood end with it: a subscriber that slept through it would hold single broadcasts back, too."""
    inbox = Inbox(channel, news())
    for number in range(30):
        send(channel, *range(3))
        inbox.drain(3 * (number + 1))
    reader = channel.consumer_session.reader
    # The read that brings the single one is out for longer than a burst's.
    wait_until(lambda: not inbox.pump(0.1) and reader.waiting and not inbox.pump(0.1) and reader.waiting)
    send(channel, "single")
    inbox.drain(91)
    assert reader.rest_s() == 0


def test_a_delivery_does_not_look_at_all_the_subscribers_of_a_process(connect, monkeypatch):
    """A server with a queue for each of its clients has a thousand: a broadcast took it seconds."""
    subscribers, looks = 100, []
    inbox = Inbox(connect().channel(), *(news(f"client{number}") for number in range(subscribers)))
    for subscription in inbox.connection.transport.delivery_loop.server.session.reader.ready:
        may = subscription.may
        monkeypatch.setattr(subscription, "may", lambda may=may: looks.append(1) or may is None or may())
    send(connect().channel(), "x")
    inbox.drain(subscribers)
    assert len(looks) < 4 * subscribers
