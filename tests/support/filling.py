"""Fills queues with many messages in a moment: copies of a few real ones, made inside the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.replies import sorted_set_members

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.keys import QueueKeys

#: Copies that one call makes; 100,000 messages take about a second.
COPIES_A_CALL = 5_000
#: Each has a number of its own: originals in two places may have been published in one millisecond.
COPY = """
local number = 0x10000000 + redis.call('HGET', KEYS[3], 'published') - ARGV[1]
for i = ARGV[1], ARGV[2] do
  local original = ARGV[3 + i % (#ARGV - 2)]
  local tag = string.sub(original, 1, 11) .. string.format('%08x', number + i) .. string.sub(original, 20)
  redis.call('COPY', KEYS[2] .. original, KEYS[2] .. tag)
  redis.call('ZADD', KEYS[1], redis.call('ZSCORE', KEYS[1], original), tag)
end
redis.call('HINCRBY', KEYS[3], 'published', ARGV[2] - ARGV[1] + 1)
"""


def fill(client: redis.Redis, of: QueueKeys, place: bytes, count: int) -> None:
    """Copy the messages that stand in `place`, one of the queue's sets, in turn, until there are `count`."""
    originals = sorted_set_members(client, place)
    for first in range(len(originals), count, COPIES_A_CALL):
        last = min(count, first + COPIES_A_CALL) - 1
        client.eval(COPY, 3, place, of.message, of.meta, first, last, *originals)
