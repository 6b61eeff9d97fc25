"""`x-consumer-timeout`: what a consumer holds for too long goes back."""

from __future__ import annotations

import pytest
from kombu import Queue

from celery_redis_plus.broker.queues.queues import Sizes
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def limited(timeout_ms, **more):
    arguments = {f"x-{name.replace('_', '-')}": value for name, value in more.items()}
    return Queue("q", durable=True, queue_arguments={"x-consumer-timeout": timeout_ms, **arguments})


def test_a_message_that_is_held_too_long_goes_to_another_consumer(channel, connect):
    slow = Inbox(channel, limited(300), prefetch=1, ack=False)
    publish(channel, "q", "one")
    slow.drain(1)
    # With options of its own it is as another process.
    other = Inbox(connect(visibility_timeout=299).channel(), limited(300), ack=False)
    wait_until(lambda: other.rest(0.02), 10)
    assert other.messages[0].delivery_info["redelivered"]
    # Its work is done after all: nothing is left to repeat.
    slow.messages[0].ack()
    wait_until(lambda: channel.queue_sizes("q") == Sizes(0, 0, 0))


def test_it_counts_as_a_failed_delivery(channel):
    inbox = Inbox(channel, limited(100, delivery_limit=1), ack=False)
    publish(channel, "q", "one")
    inbox.drain(1)
    wait_until(lambda: channel.queue_counters("q").dead_lettered == 1, 10)
    assert channel.queue_counters("q").nacked == 1


def test_a_message_that_is_settled_in_time_stays_settled_and_other_queues_have_no_limit(channel):
    inbox = Inbox(channel, limited(200), "free")
    publish(channel, "q", "one")
    inbox.drain(1)
    assert channel.session.service.unacked_messages.timeouts_s == {"q": 0.2}
    inbox.rest(0.5)
    assert channel.queue_counters("q").nacked == 0


@pytest.mark.parametrize("timeout", [0, -1, "5", 1.5])
def test_other_values_are_refused(channel, timeout):
    with pytest.raises(InvalidArgument, match=r"'x-consumer-timeout' of queue 'q' is .* a whole number of ms from 1"):
        declare(channel, "q", arguments={"x-consumer-timeout": timeout})
