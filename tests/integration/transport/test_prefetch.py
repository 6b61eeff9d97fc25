"""How many messages a consumer gets, and from which of its queues."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter

import kombu
import pytest

from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


@pytest.mark.parametrize("prefetch", [1, 2, 7, 100])
def test_never_more_than_prefetch_are_delivered_or_claimed(connect, prefetch):
    channel, publisher = connect().channel(), connect().channel()
    declare(channel, "q")
    publish(publisher, "q", *range(150))
    inbox = Inbox(channel, "q", prefetch=prefetch, ack=False)
    most = 0
    while len(inbox.messages) < 150:
        assert inbox.pump(5)
        most = max(most, publisher.queue_sizes("q").unacked)
        unsettled = [message for message in inbox.messages if not message.acknowledged]
        assert len(unsettled) <= prefetch
        if len(unsettled) == prefetch or len(inbox.messages) == 150:
            unsettled[0].ack()
    assert most == prefetch
    assert inbox.bodies == list(range(150))


def test_a_smaller_prefetch_count_holds_from_the_next_delivery_on(channel):
    inbox = Inbox(channel, "q", prefetch=5, ack=False)
    publish(channel, "q", *range(10))
    inbox.drain(3)
    inbox.consumer.qos(prefetch_count=2)
    assert inbox.rest() == [0, 1, 2]
    inbox.messages[0].ack()
    inbox.messages[1].ack()
    assert inbox.drain(4) == [0, 1, 2, 3]
    inbox.consumer.qos(prefetch_count=0)
    assert inbox.rest() == list(range(10))


def test_a_full_consumer_leaves_the_rest_to_others(connect):
    full, other = connect().channel(), connect().channel()
    declare(full, "q")
    publish(full, "q", *range(10))
    greedy = Inbox(full, "q", prefetch=2, ack=False)
    greedy.drain(2)
    inbox = Inbox(other, "q")
    assert inbox.drain(8) == list(range(2, 10))
    # What is published from now on must not wake the full one alone.
    publish(other, "q", "more")
    assert inbox.drain(9, timeout_s=2)[-1] == "more"


def test_a_consumer_that_becomes_full_passes_its_wake_up_on(connect):
    """It has waited longest, so the server wakes it first; it has no credit by then."""
    first, second = connect().channel(), connect().channel()
    declare(first, "q")
    waiting = Inbox(first, "q", "side", prefetch=1, ack=False)
    assert waiting.rest(0.05) == []
    helper = Inbox(second, "q")
    assert helper.rest(0.05) == []
    publish(second, "side", "fills it")
    waiting.drain(1)
    publish(second, "q", "for the other")
    deadline = time.monotonic() + 3
    while not helper.messages and time.monotonic() < deadline:
        waiting.pump(0.05)
        helper.pump(0.05)
    assert helper.bodies == ["for the other"]


def test_an_ack_from_another_thread_frees_the_credit_and_wakes_the_consumer(connect):
    inbox = Inbox(connect().channel(), "q", prefetch=1, ack=False)
    publish(connect().channel(), "q", 1, 2)
    inbox.drain(1)
    start = machine_time()
    acking = threading.Timer(0.2, inbox.messages[0].ack)
    acking.start()
    assert inbox.drain(2) == [1, 2]
    acking.join()
    assert machine_time() - start < 1.2


def test_acks_from_many_threads_settle_everything(connect):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", *range(200))
    inbox = Inbox(channel, "q", ack=False, prefetch=200)
    inbox.drain(200)
    threads = [threading.Thread(target=lambda part=part: [m.ack() for m in inbox.messages[part::8]]) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher = connect().channel()
    wait_until(lambda: (inbox.pump(0.01), publisher.queue_sizes("q").unacked)[1] == 0)
    assert publisher.queue_sizes("q").ready == 0


def test_a_hundred_queues_on_one_consumer_all_get_their_turn(connect):
    channel, publisher = connect().channel(), connect().channel()
    names = [f"q{number:03}" for number in range(100)]
    declare(channel, *names)
    publish(publisher, names[50], *["flood"] * 1500)
    for name in names:
        publish(publisher, name, name, name, name)
    inbox = Inbox(channel, *names, prefetch=10)
    inbox.drain(1500)
    counts = Counter(message.delivery_info["routing_key"] for message in inbox.messages)
    assert all(counts[name] == 3 for name in names if name != names[50]), "a flooded queue starved others"


def test_round_robin_alternates_between_two_full_queues(channel):
    declare(channel, "a", "b")
    publish(channel, "a", *["a"] * 100)
    publish(channel, "b", *["b"] * 100)
    received = Inbox(channel, "a", "b", prefetch=4).drain(200)
    assert 40 <= Counter(received[:100])["a"] <= 60


@pytest.mark.parametrize(("strategy", "expected"), [("sorted", ["a", "b", "c"]), ("priority", ["c", "a", "b"])])
def test_other_strategies_empty_the_first_queue_first(connect, strategy, expected):
    channel = connect(queue_order_strategy=strategy).channel()
    declare(channel, "c", "a", "b")
    for name in ("a", "b", "c"):
        publish(channel, name, *[name] * 10)
    received = Inbox(channel, "c", "a", "b", prefetch=1).drain(30)
    assert received == [name for name in expected for _ in range(10)]


def test_two_consumers_of_one_queue_share_it(connect):
    inboxes = [Inbox(connect().channel(), "q", prefetch=1) for _ in range(2)]
    publish(connect().channel(), "q", *range(100))
    while sum(len(inbox.messages) for inbox in inboxes) < 100:
        for inbox in inboxes:
            inbox.pump(0.05)
    assert sorted(inboxes[0].bodies + inboxes[1].bodies) == list(range(100))
    assert all(len(inbox.messages) > 20 for inbox in inboxes)


def test_two_channels_of_one_connection_have_credit_of_their_own(connection):
    one, two = connection.channel(), connection.channel()
    declare(one, "a", "b")
    publish(one, "a", *range(5))
    publish(one, "b", *range(5))
    first, second = Inbox(one, "a", prefetch=2, ack=False), Inbox(two, "b", prefetch=3, ack=False)
    first.rest()
    assert (first.bodies, second.bodies) == ([0, 1], [0, 1, 2])


def test_a_consumer_that_works_without_ack_late_finds_messages_again_after_an_error_in_its_callback(connect):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "bad", "good")

    def fail(message):
        raise ValueError(message.payload)

    consumer = kombu.Consumer(channel, [kombu.Queue("q", durable=True)], on_message=fail)
    consumer.qos(prefetch_count=1)
    consumer.consume()
    with pytest.raises(ValueError, match="bad"):
        channel.connection.client.drain_events(timeout=5)
    assert channel.queue_sizes("q").unacked == 1
    channel.close()
    assert Inbox(connect().channel(), "q").drain(2) == ["bad", "good"]


@pytest.mark.parametrize("count", [-1, -0.5, "2", math.nan, math.inf, True])
def test_a_prefetch_count_that_is_none_is_refused(channel, count):
    channel.basic_qos(0, 3, False)
    with pytest.raises(InvalidArgument, match=re.escape(f"prefetch_count is {count!r}; allowed: a number from 0")):
        channel.basic_qos(0, count, False)
    assert channel.qos.prefetch_count == 3


def test_a_fraction_of_a_message_counts_as_one(channel):
    inbox = Inbox(channel, "q", ack=False)
    inbox.consumer.qos(prefetch_count=1.5)
    publish(channel, "q", *range(3))
    assert inbox.rest() == [0, 1]
