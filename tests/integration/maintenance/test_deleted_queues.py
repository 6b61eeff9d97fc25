"""What is known of a queue after it was deleted."""

from __future__ import annotations

from celery_redis_plus.broker.queues import queue_registry
from tests.support.waiting import wait_until


def now_ms(client):
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


def test_a_wakeup_that_is_passed_on_after_its_queue_was_deleted_goes(channel, redis_client):
    channel.queue_declare("q", durable=True)
    wakeup = channel.session.keys.queue("q").wakeup
    channel.queue_delete("q")
    channel.consumer_session.waiter.notify(wakeup)
    assert 0 < redis_client.pttl("wakeup:{q}") <= 60_000


def test_the_number_of_deleted_queues_that_are_remembered_is_bounded(channel, redis_client, monkeypatch):
    monkeypatch.setattr(queue_registry, "MAX_TOMBSTONES", 3)
    channel.queue_declare("lasting", durable=True)
    for number in range(6):
        channel.queue_declare(f"r{number}", exclusive=True)
        channel.queue_delete(f"r{number}")
        # Tombstones of one millisecond have no order.
        deleted = now_ms(redis_client)
        wait_until(lambda at=deleted: now_ms(redis_client) > at)
    remembered = set(redis_client.zrange("queues", 0, -1))
    assert remembered == {b"lasting", b"r3", b"r4", b"r5"}
