"""`x-consumer-timeout`: what a consumer holds for too long goes back."""

from __future__ import annotations

import pytest
from kombu import Exchange, Producer, Queue

from celery_redis_plus.broker.queues.queues import Sizes
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.maintenance import sweeper
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


def stored(redis_client, field):
    (key,) = redis_client.scan_iter("message:*")
    return int(redis_client.hget(key, field) or 0)


def test_the_process_that_still_works_on_it_burns_no_failures_and_leaves_it_to_others(channel, connect, redis_client):
    slow = Inbox(channel, limited(100, delivery_limit=2), ack=False)
    publish(channel, "q", "one")
    slow.drain(1)
    # It has credit, so it claims the message again and again.
    wait_until(lambda: slow.rest(0.02) and stored(redis_client, "claim") >= 5, 20)
    assert (len(slow.messages), stored(redis_client, "failed")) == (1, 1)
    assert channel.queue_counters("q").nacked == 1
    other = Inbox(connect(visibility_timeout=299).channel(), limited(100, delivery_limit=2), ack=False)
    wait_until(lambda: slow.rest(0.02) and other.rest(0.02), 20)
    other.messages[0].ack()
    slow.messages[0].ack()
    wait_until(lambda: channel.queue_sizes("q") == Sizes(0, 0, 0))
    assert channel.queue_counters("q").dead_lettered == 0


def test_what_waits_for_a_pool_goes_back_without_a_failure(channel, redis_client):
    inbox = Inbox(channel, limited(100, delivery_limit=1), ack=False)
    # As in a Celery worker.
    channel.queue_consumers.begins_at_delivery = False
    publish(channel, "q", "one")
    inbox.drain(1)
    wait_until(lambda: inbox.rest(0.02) and stored(redis_client, "claim") >= 4, 20)
    assert (len(inbox.messages), stored(redis_client, "failed")) == (1, 0)
    # The work begins: from here on it counts.
    inbox.messages[0].begin()
    wait_until(lambda: inbox.rest(0.02) and channel.queue_counters("q").dead_lettered == 1, 20)


def test_a_freed_place_of_x_max_unacked_wakes_the_next_consumer(connect, monkeypatch):
    # Nothing else wakes it within this test.
    monkeypatch.setattr(sweeper, "SWEEP_INTERVAL_S", 60.0)
    channel = connect().channel()
    queue = limited(2000, max_unacked=1, delivery_limit=1)
    slow = Inbox(channel, queue, prefetch=1, ack=False)
    publish(channel, "q", "one")
    slow.drain(1)
    other = Inbox(connect(visibility_timeout=299, polling_interval=600).channel(), queue, prefetch=1)
    publish(channel, "q", "two")
    assert not other.rest(0.05)
    wait_until(lambda: channel.queue_counters("q").dead_lettered == 1, 10)
    wait_until(lambda: other.rest(0.02) == ["two"], 10)


def test_it_holds_for_basic_get(channel, connect):
    declare(channel, "q", arguments={"x-consumer-timeout": 100})
    publish(channel, "q", "one")
    getter = connect(visibility_timeout=299).channel()
    assert getter.basic_get("q").body
    wait_until(lambda: channel.queue_counters("q").nacked == 1, 10)


def subscriber(timeout_ms, **more):
    arguments = {"x-consumer-timeout": timeout_ms, **more}
    return Queue("s", Exchange("news", "fanout"), durable=True, queue_arguments=arguments)


def test_a_broadcast_that_is_held_too_long_becomes_a_dead_letter_and_the_next_one_comes(channel, connect):
    declare(channel, "letters")
    forward = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    held = Inbox(channel, subscriber(200, **forward), prefetch=1, ack=False)
    free = Inbox(channel.connection.client.channel(), Queue("free", Exchange("news", "fanout"), durable=True), ack=False)
    producer = Producer(connect().channel(), Exchange("news", "fanout"))
    for body in ("first", "second"):
        producer.publish(body)
    wait_until(lambda: (held.pump(0.02), len(held.messages) == 2)[1], 10)
    wait_until(lambda: channel.queue_sizes("letters").ready >= 1, 10)
    letter = channel.basic_get("letters")
    assert (letter.payload, letter.headers["x-death"][0]["queue"]) == ("first", "s")
    # The answer comes too late, and that in time counts.
    for message in held.messages:
        message.ack()
    assert free.exactly(2) == ["first", "second"]
    assert all(message.channel.qos.knows(message.delivery_tag) for message in free.messages)
    assert not held.rest(0.3)[2:]


def test_a_broadcast_without_a_dead_letter_exchange_ends_with_a_line_in_the_log(channel, caplog):
    inbox = Inbox(channel, subscriber(100), ack=False)
    Producer(channel, Exchange("news", "fanout")).publish("one")
    inbox.drain(1)
    wait_until(lambda: "is given up" in caplog.text, 10)
    wait_until(lambda: not channel.qos.busy, 10)
    assert inbox.rest(0.05) == ["one"]


@pytest.mark.parametrize("timeout", [0, -1, "5", 1.5])
def test_other_values_are_refused(channel, timeout):
    with pytest.raises(InvalidArgument, match=r"'x-consumer-timeout' of queue 'q' is .* a whole number of ms from 1"):
        declare(channel, "q", arguments={"x-consumer-timeout": timeout})
