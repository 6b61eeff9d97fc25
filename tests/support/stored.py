"""What tests that use the broker as its users do know of stored data, when they look at it over redis-py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.keys import Keys, QueueKeys
from celery_redis_plus.stored_message import LARGE_BODY

if TYPE_CHECKING:
    import redis

__all__ = ["LARGE_BODY", "UNDELIVERED", "keys_of", "now_ms"]


def keys_of(queue: str) -> QueueKeys:
    """Return the keys of a queue, without the prefix of any app."""
    return Keys().queue(queue)


def now_ms(client: redis.Redis) -> int:
    """Return the server's time, in ms since the epoch."""
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000
