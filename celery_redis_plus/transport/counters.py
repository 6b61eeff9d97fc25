"""`counters`: what has happened in a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus.transport.channel_lookup import channel_of

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.counters import Counters


def counters(queue: str, *, connection: Any) -> Counters:
    """Return what has happened in `queue` since it was declared, and what is in it, in one round trip.

    Args:
        queue: its name.
        connection: a kombu Connection or channel over our transport, or a Celery app.

    Raises:
        ChannelError: there is no such queue (404).
        redis.exceptions.RedisError: as `translation.translate` names it.
    """
    with channel_of(connection) as channel:
        return channel.queue_counters(queue)
