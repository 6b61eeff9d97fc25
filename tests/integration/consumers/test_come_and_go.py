"""A connection that has one queue after the other, such as one for each reply, keeps nothing of those that are gone."""

from __future__ import annotations

import weakref

import kombu
import pytest

from tests.support.inbox import Inbox, publish

#: With rules for its consumers, so that claims follow them.
ALONE = {"x-single-active-consumer": True}


def drain_one_after_the_other(connection, **options):
    for number in range(5):
        channel = connection.channel()
        inbox = Inbox(channel, kombu.Queue(f"replies-{number}", auto_delete=True, **options))
        publish(channel, f"replies-{number}", "x")
        inbox.drain(1)
        channel.close()


@pytest.mark.parametrize(
    "options", [{}, {"exclusive": True}, {"queue_arguments": ALONE}, {"queue_arguments": {"x-filtered": True}}]
)
def test_nothing_is_kept_of_reply_queues(connect, options):
    connection = connect()
    drain_one_after_the_other(connection, **options)
    finalizers = len(weakref.finalize._registry)  # noqa: SLF001 - there is no public list
    drain_one_after_the_other(connection, **options)
    assert len(weakref.finalize._registry) == finalizers  # noqa: SLF001
    restricted = connection.default_channel.delivery_loop.server.restricted_queues
    kept = {name: value for name, value in vars(restricted).items() if isinstance(value, dict | set) and value}
    assert kept == {}


def test_nothing_is_kept_of_subscribers(connect):
    connection = connect()
    exchange = kombu.Exchange("news", "fanout")
    for number in range(5):
        channel = connection.channel()
        inbox = Inbox(channel, kombu.Queue(f"subscriber-{number}", exchange, auto_delete=True))
        kombu.Producer(channel, exchange).publish(number)
        assert inbox.drain(1) == [number]
        channel.close()
    assert connection.default_channel.consumer_session.bound == {}


def test_a_channel_keeps_no_wake_up_of_a_queue_that_it_consumes_no_more(channel):
    for number in range(5):
        Inbox(channel, f"q{number}").consumer.cancel()
    assert channel.queue_consumers.wakeups == {}
