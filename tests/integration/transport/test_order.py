"""In which order messages come: by priority, then in the order of publishing, to the millisecond and below."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.errors import InvalidPriority
from tests.support.inbox import Inbox, declare, publish


def test_two_thousand_from_two_producers_of_one_connection_come_in_the_order_of_publishing(connection, channel):
    declare(channel, "q")
    first, second = kombu.Producer(channel), kombu.Producer(connection.channel())
    for number in range(1000):
        first.publish(2 * number, routing_key="q")
        second.publish(2 * number + 1, routing_key="q")
    assert Inbox(channel, "q").drain(2000) == list(range(2000))


def test_two_thousand_from_two_connections_come_in_the_order_of_publishing(connect):
    channels = [connect().channel(), connect().channel()]
    declare(channels[0], "q")
    producers = [kombu.Producer(channel) for channel in channels]
    for number in range(2000):
        producers[number % 2].publish(number, routing_key="q")
    assert Inbox(channels[0], "q", prefetch=7).drain(2000) == list(range(2000))


def test_all_256_priorities_come_highest_first_and_in_order_within_each(channel):
    declare(channel, "q")
    for turn in range(2):
        for priority in range(256):
            publish(channel, "q", [priority, turn], priority=(priority * 97) % 256)
    received = Inbox(channel, "q").drain(512)
    ranks = [(priority * 97) % 256 for priority, _ in received]
    assert ranks == sorted(ranks, reverse=True)
    assert [turn for _, turn in received] == [0, 1] * 256


def test_a_message_without_priority_has_priority_zero(channel):
    declare(channel, "q")
    publish(channel, "q", "none")
    publish(channel, "q", "one", priority=1)
    publish(channel, "q", "zero", priority=0)
    inbox = Inbox(channel, "q")
    assert inbox.drain(3) == ["one", "none", "zero"]
    assert [message.properties["priority"] for message in inbox.messages] == [1, 0, 0]


def test_low_first_delivers_priority_zero_first(connect):
    channel = connect(priority_order="low-first").channel()
    declare(channel, "q")
    for priority in (9, 0, 255, 3):
        publish(channel, "q", priority, priority=priority)
    assert Inbox(channel, "q").drain(4) == [0, 3, 9, 255]


def test_priorities_over_the_queues_maximum_count_as_the_maximum(channel):
    queue = kombu.Queue("q", max_priority=5, durable=True)
    queue(channel).declare()
    for body, priority in (("five", 5), ("nine", 9), ("four", 4), ("all", 255)):
        publish(channel, "q", body, priority=priority)
    inbox = Inbox(channel, queue)
    assert inbox.drain(4) == ["five", "nine", "all", "four"]


def test_a_producer_that_never_declared_the_queue_keeps_to_its_maximum_priority(connect):
    """The maximum belongs to the queue, not to the connection that declared it."""
    consuming = connect().channel()
    queue = kombu.Queue("q", max_priority=5, durable=True)
    queue(consuming).declare()
    stranger = connect().channel()
    publish(consuming, "q", "first", priority=5)
    publish(stranger, "q", "second", priority=9)
    assert Inbox(consuming, queue).drain(2) == ["first", "second"]


@pytest.mark.parametrize("priority", [256, -1, 1.5, "high", True, [1]])
def test_a_bad_priority_is_refused_and_nothing_is_stored(channel, priority):
    declare(channel, "q")
    with pytest.raises(InvalidPriority, match="0 to 255"):
        publish(channel, "q", "bad", priority=priority)
    publish(channel, "q", "good")
    assert Inbox(channel, "q").rest() == ["good"]


def test_batches_of_a_producer_keep_order_and_priority(channel):
    declare(channel, "q")
    for number in range(20):
        publish(channel, "q", number, priority=number % 2)
    inbox = Inbox(channel, "q", prefetch=3)
    assert inbox.drain(20) == [*range(1, 20, 2), *range(0, 20, 2)]
