"""The trash of queues with limits: what is freed there is counted once, and for its own queue."""

from __future__ import annotations

import pytest

from tests.support.inbox import publish

LATER_MS = 3_600_000


@pytest.fixture
def keys(channel):
    return channel.session.keys.queue("q")


def counted(client, keys):
    return int(client.hget(keys.meta, "bytes") or 0)


def test_the_trash_of_a_deleted_queue_changes_no_count_of_its_successor(channel, bounded, redis_client, keys):
    limits = {"max_length_bytes": 10_000, "overflow": "reject-publish"}
    bounded(**limits)
    publish(channel, "q", 1, 2, 3, 4)
    # The process dies before it frees them.
    assert channel.session.queues._delete("q")[0]  # noqa: SLF001
    bounded(**limits)
    publish(channel, "q", "stays")
    size = counted(redis_client, keys)

    channel.session.queues.empty_trash("q")
    assert counted(redis_client, keys) == size > 0
    assert channel.queue_purge("q") == 1
    assert counted(redis_client, keys) == 0


def test_a_message_that_stood_in_two_sets_is_counted_out_once(channel, bounded, redis_client, keys):
    bounded(max_length_bytes=10_000, overflow="reject-publish")
    publish(channel, "q", 1)
    publish(channel, "q", 2, headers={"x-delay": LATER_MS})
    # As a script leaves it that fails after its first write.
    (tag,) = redis_client.zrange(keys.ready, 0, -1)
    redis_client.zadd(keys.delayed, {tag: 9 * 10**12})
    channel.queue_purge("q")
    assert counted(redis_client, keys) == 0
    assert not redis_client.keys("message:*")
    assert not redis_client.keys("trash:*")
