"""Fills queues with many messages in a moment: copies of a few real ones, made inside the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.inbox import declare, publish
from tests.support.replies import sorted_set_members
from tests.support.stored import keys_of
from tests.support.waiting import wait_until

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


def fill_with_expired(channel: Any, client: redis.Redis, count: int, **arguments: Any) -> None:
    """Fill the queue `q`, which has these arguments, with expired messages, and put a good one, "honey", behind them."""
    declare(channel, "q", arguments=arguments)
    publish(channel, "q", "milk", expiration=0.05)
    of = keys_of("q")
    fill(client, of, of.ready, count)
    expiry = float(client.zrange(of.expiry, 0, -1, withscores=True)[0][1])
    wait_until(lambda: int(client.time()[0]) * 1000 > expiry)
    publish(channel, "q", "honey")
