"""What a queue counts."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from celery import Celery
from kombu import pools
from kombu.exceptions import ChannelError

import celery_redis_plus
from celery_redis_plus import configure_app
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.errors import PublishRefused, PublishTimedOut, QueueFull
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def test_everything_that_happens_to_messages_is_counted_once(connection, channel, bounded):
    queue = bounded(max_length=30, overflow="reject-publish", message_ttl=60_000)
    publish(channel, queue, *range(12))
    publish(channel, queue, "later", headers={"x-delay": 60_000})
    taken = [channel.basic_get(queue) for _ in range(5)]
    taken[0].ack()
    taken[1].ack()
    taken[2].reject()
    taken[3].requeue()
    publish(channel, queue, "short", expiration=0.05)
    wait_until(lambda: channel.queue_counters(queue).nacked == 2)
    counters = channel.queue_counters(queue)
    assert (counters.published, counters.delivered, counters.acked) == (14, 5, 2)
    assert (counters.dead_lettered, counters.delayed, counters.unacked) == (1, 1, 1)
    inbox = Inbox(channel, "other")
    channel.session.service.consumed.add(queue, "test", None)
    wait_until(lambda: channel.queue_counters(queue).expired == 1)
    inbox.consumer.cancel()
    for number in range(40):
        with suppress(QueueFull):
            publish(channel, queue, number)
    counters = channel.queue_counters(queue)
    assert counters.published + counters.rejected == 54
    assert (counters.acked, counters.dead_lettered) == (2, 2)
    assert counters.ready + counters.delayed == 30
    assert channel.queue_purge(queue) == 30
    assert channel.queue_counters(queue).purged == 30
    taken[4].ack()
    wait_until(lambda: channel.queue_counters(queue).acked == 3)
    counters = channel.queue_counters(queue)
    assert counters.published == counters.acked + counters.dead_lettered + counters.purged
    channel.session.service.consumed.remove(queue, "test")


def test_what_is_cancelled_or_moved_was_not_acked(channel):
    messages = Messages(channel.session.commands, channel.session.keys, dead_letter_max=10)
    for queue in ("q", "other"):
        declare(channel, queue)
    publish(channel, "q", *range(4))
    tags = [tag.decode() for tag in channel.session.commands.command("ZRANGE", channel.session.keys.queue("q").ready, 0, -1)]
    assert messages.cancel("q", tags[:1])
    assert messages.cancel("q", tags[1:2], dead_letter=True)
    assert messages.move("q", tags[2], "other")
    channel.basic_get("q").ack()
    wait_until(lambda: not channel.queue_counters("q").unacked)
    counters = channel.queue_counters("q")
    assert (counters.cancelled, counters.dead_lettered, counters.moved, counters.acked) == (1, 1, 1, 1)
    assert channel.queue_counters("other").published == 1


def test_waiting_is_counted(bounded, connect, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    channel = connect(publish_timeout=0.2).channel()
    queue = bounded(max_length=4, overflow="block", throttle=1.0)
    publish(channel, queue, *range(4))
    with pytest.raises(PublishTimedOut):
        publish(channel, queue, 5)
    counters = channel.queue_counters(queue)
    # 1/4 s is cut to the timeout, as all are.
    assert (counters.throttled, counters.blocked, counters.rejected) == (3, 1, 1)
    assert counters.throttled_s == pytest.approx(0.6)


def test_what_a_typed_queue_refuses_is_counted(bounded, channel):
    queue = bounded(accept_types=["text/*"])
    for body in ({"a": 1}, "text"):
        with suppress(PublishRefused):
            publish(channel, queue, body)
    counters = channel.queue_counters(queue)
    assert (counters.published, counters.rejected) == (1, 1)


def test_a_recipient_that_is_too_late_counts_as_nacked_and_dead_lettered(connection, channel):
    declare(channel, "q")
    delivery = celery_redis_plus.publish("x", connection=connection, routing_key="q", track=True, ack_timeout=0.1)
    assert delivery.wait(10)
    counters = channel.queue_counters("q")
    assert (counters.nacked, counters.dead_lettered, counters.acked) == (1, 1, 0)


def test_a_broadcast_that_nobody_gets_counts_as_nacked_and_dead_lettered(connection, channel):
    channel.exchange_declare("news", "fanout")
    celery_redis_plus.broadcast("x", "news", connection=connection)
    counters = channel.queue_counters("celery_redis_plus.undelivered")
    assert (counters.nacked, counters.dead_lettered) == (1, 1)


def test_a_queue_that_does_not_exist_has_no_counters(channel):
    with pytest.raises(ChannelError, match="'nope'"):
        channel.queue_counters("nope")


def test_an_app_reads_the_counters_of_its_queues(broker_url):
    app = configure_app(Celery("shop", broker=broker_url, set_as_current=False))
    app.signature("shop.take", queue="q").delay()
    counters = celery_redis_plus.counters("q", connection=app)
    assert (counters.published, counters.ready) == (1, 1)
    app.close()
    pools.reset()
