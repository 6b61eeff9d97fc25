"""What has happened in a queue since it was declared, read in one round trip.

The counts stand in the queue's record and go with it. `acked` is what is left of `published`: whatever else becomes of a message
is counted, and so an ack costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from celery_redis_plus.errors import QueueNotFound
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


@dataclass(frozen=True, slots=True)
class Counters:
    """What has happened in one queue, and what is in it now; `COUNTERS` and `NOW` of `record_fields.py` say what each means."""

    published: int
    delivered: int
    acked: int
    nacked: int
    dead_lettered: int
    expired: int
    throttled: int
    throttled_s: float
    blocked: int
    rejected: int
    purged: int
    cancelled: int
    moved: int
    discarded: int
    replayed: int
    dead_evicted: int
    vanished: int
    ready: int
    delayed: int
    unacked: int


def read_counters(commands: CommandConnection, keys: Keys, queue: str) -> Counters:
    """Return a queue's counters.

    Raises:
        QueueNotFound: it has no record.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    of = keys.queue(queue)
    flat, ready, delayed, unacked = commands.call(script("counters"), [of.meta, of.ready, of.delayed, of.index])
    record = dict(zip(flat[::2], flat[1::2], strict=True))
    if b"id" not in record:
        raise QueueNotFound(f"queue {queue!r} does not exist, or expired: it has no counters")

    def count(name: str) -> int:
        return stored_number(record.get(name.encode()))

    settled = ("dead_lettered", "purged", "cancelled", "moved", "discarded", "vanished")
    acked = count("published") - ready - delayed - unacked - sum(map(count, settled))
    stored: dict[str, Any] = {field.name: count(field.name) for field in fields(Counters)}
    # A message that another consumer has made a dead letter meanwhile is both.
    now = {"acked": max(acked, 0), "throttled_s": count("throttled_us") / 1e6}
    return Counters(**{**stored, **now, "ready": ready, "delayed": delayed, "unacked": unacked})
