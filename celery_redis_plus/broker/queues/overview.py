"""What an operator sees of each queue at one moment: how much is in it, how long that waits, its consumers and its pause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.eta import time_of_ms
from celery_redis_plus.errors import QueueNotFound
from celery_redis_plus.keys import decode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from celery_redis_plus.broker.queue_failures import KeyFailures
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue at one moment.

    Attributes:
        queue: its name.
        ready, delayed, unacked: messages by state.
        dead: its dead letters, those included that wait for its dead-letter exchange.
        consumers: its live consumers.
        oldest_s: seconds since the oldest ready message became ready; None where none is ready.
        paused: the reason of its pause; None where it is not paused.
        paused_until: when the pause ends by itself; None: it does not, or there is none.
        published, delivered: messages since the queue was declared. Two overviews give rates.
    """

    queue: str
    ready: int
    delayed: int
    unacked: int
    dead: int
    consumers: int
    oldest_s: float | None
    paused: str | None
    paused_until: datetime | None
    published: int
    delivered: int


def list_queues(commands: CommandConnection, keys: Keys) -> list[str]:
    """Return the names of the queues that the server lists, sorted. A transient one may have vanished by now.

    Raises as `CommandConnection.call` does.
    """
    names = commands.command("ZRANGE", keys.queues, "0", "+inf", "BYSCORE")
    return sorted(decode_name(name) for name in names)


def read_overview(commands: CommandConnection, keys: Keys, queue: str) -> QueueOverview:
    """Return one queue's overview, in one round trip.

    Raises:
        QueueNotFound: it has no record.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    of = keys.queue(queue)
    places = [of.meta, of.ready, of.delayed, of.index, of.message, of.dlx_outbox, of.dead, *of.living]
    exists, ready, delayed, unacked, dead, consumers, oldest_ms, paused, until, published, delivered = commands.call(
        script("queue_overview"), places
    )
    if not exists:
        raise QueueNotFound(f"there is no queue {queue!r}")
    return QueueOverview(
        queue=queue,
        ready=ready,
        delayed=delayed,
        unacked=unacked,
        dead=dead,
        consumers=consumers,
        oldest_s=max(0, stored_number(oldest_ms)) / 1000 if oldest_ms else None,
        paused=paused.decode("utf-8", "replace") or None,
        paused_until=time_of_ms(stored_number(until)) if paused and stored_number(until) else None,
        published=stored_number(published),
        delivered=stored_number(delivered),
    )


def read_overviews(
    commands: CommandConnection, keys: Keys, queues: Iterable[str], failures: KeyFailures | None = None
) -> Iterator[QueueOverview]:
    """Yield the overviews of those of the queues that exist. Raises as `list_queues` does.

    With `failures` a queue whose keys cannot be read is left out, and logged there.
    """
    for queue in queues:
        found = None
        with suppress(QueueNotFound), nullcontext() if failures is None else failures.alone(queue):
            found = read_overview(commands, keys, queue)
        if found is not None:
            yield found
