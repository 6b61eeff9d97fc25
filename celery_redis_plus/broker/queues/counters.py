"""What has happened in a queue since it was declared, read in one round trip.

The counts stand in the queue's record and go with it. `acked` is what is left of `published`: whatever else becomes of a message
is counted, and so an ack costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.errors import QueueNotFound
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


@dataclass(frozen=True, slots=True)
class Counters:
    """What has happened in one queue, and what is in it.

    Attributes:
        published: messages that were put into it: by publishers, as dead letters of other queues, and replayed.
        delivered: messages handed to consumers; each delivery counts, also of messages that were released unseen.
        acked: messages that left it because their work was done.
        nacked: rejections, with requeue or without, and recipients of tracked deliveries that did not answer in time.
        dead_lettered: messages that died in it, for whatever reason. expired: those whose time was over.
        throttled: publishes that were slowed down; throttled_s: for how many seconds in all.
        blocked: publishes that had to wait for room.
        rejected: publishes that it refused: it was full, stayed full for too long, or accepts other types.
        purged: messages that an operator removed. cancelled: those that were cancelled for good.
        moved: messages that were moved into another queue before anybody had them.
        discarded: messages that a transient queue had no place to keep as dead letters.
        replayed: dead letters that were put back. dead_evicted: those that went for good because there were too many, or too old.
        vanished: messages whose hash was missing: evicted by the server, or deleted by hand.
        unrevoked: expired tasks whose results never become REVOKED: none revoked them within a day, or too many were waiting.
        ready, delayed, unacked: how many messages are in it now.
    """

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
    unrevoked: int
    ready: int
    delayed: int
    unacked: int


def read_counters(commands: CommandConnection, keys: Keys, queue: str) -> Counters:
    """Return a queue's counters.

    Raises:
        QueueNotFound: it has no record.
        redis.exceptions.RedisError: as `translation.translate` names it.
    """
    of = keys.queue(queue)
    flat, ready, delayed, unacked = commands.call(script("counters"), [of.meta, of.ready, of.delayed, of.index])
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if b"id" not in fields:
        raise QueueNotFound(f"queue {queue!r} does not exist, or expired: it has no counters")

    def count(name: str) -> int:
        return int(fields.get(name.encode(), 0))

    otherwise = ("dead_lettered", "purged", "cancelled", "moved", "discarded", "vanished")
    acked = count("published") - ready - delayed - unacked - sum(map(count, otherwise))
    return Counters(
        published=count("published"),
        delivered=count("delivered"),
        # A message that another consumer has made a dead letter meanwhile is both.
        acked=max(acked, 0),
        nacked=count("nacked"),
        dead_lettered=count("dead_lettered"),
        expired=count("expired"),
        throttled=count("throttled"),
        throttled_s=count("throttled_us") / 1e6,
        blocked=count("blocked"),
        rejected=count("rejected"),
        purged=count("purged"),
        cancelled=count("cancelled"),
        moved=count("moved"),
        discarded=count("discarded"),
        replayed=count("replayed"),
        dead_evicted=count("dead_evicted"),
        vanished=count("vanished"),
        unrevoked=count("unrevoked"),
        ready=ready,
        delayed=delayed,
        unacked=unacked,
    )
