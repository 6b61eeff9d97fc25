"""What an operator sees of each queue at one moment: how much is in it, how long that waits, its consumers and its pause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from celery_redis_plus.broker.arguments.eta import time_of_ms
from celery_redis_plus.broker.arguments.limits import Limits
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.errors import InvalidArgument, QueueNotFound
from celery_redis_plus.keys import decode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from celery_redis_plus.broker.queue_failures import KeyFailures
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


#: The limit that holds consumers up, and no publisher.
OF_CONSUMERS: Final = "x-max-unacked"
#: How the queues are called that Celery declares for remote control (kombu's mailboxes) and for its events.
INTERNAL_ENDS: Final = ".pidbox"
INTERNAL_BEGINS: Final = "celeryev."


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit of a queue: the argument that sets it, how much may be used, and how much is."""

    name: str
    used: int
    most: int

    @property
    def part(self) -> float:
        """How much of it is used, from 0 to 1 and above; 1 of a limit of nothing."""
        return self.used / self.most if self.most else 1.0


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
        rejected: publishes that the queue has refused since then.
        arguments: what it was declared with: durable, exclusive and auto_delete where they are true, and its `x-*` arguments.
            Empty where they cannot be read.
        limits: its limits, and how much of each is used.
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
    rejected: int = 0
    arguments: Mapping[str, object] = field(default_factory=dict)
    limits: tuple[LimitUse, ...] = ()

    @property
    def full(self) -> float | None:
        """The part that is used of the tightest limit of what publishers may store, from 0 to 1 and above; None without one."""
        return max((limit.part for limit in self.limits if limit.name != OF_CONSUMERS), default=None)


def list_queues(commands: CommandConnection, keys: Keys) -> list[str]:
    """Return the names of the queues that the server lists, sorted. A transient one may have vanished by now.

    Raises as `CommandConnection.call` does.
    """
    names = commands.command("ZRANGE", keys.queues, "0", "+inf", "BYSCORE")
    return sorted(decode_name(name) for name in names)


def is_internal(queue: str) -> bool:
    """Return whether Celery has a queue of this name for itself: mailboxes and replies of remote control, and its events."""
    return queue.endswith(INTERNAL_ENDS) or queue.startswith(INTERNAL_BEGINS)


def read_overview(commands: CommandConnection, keys: Keys, queue: str) -> QueueOverview:
    """Return one queue's overview, in one round trip.

    Raises:
        QueueNotFound: it has no record.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    of = keys.queue(queue)
    places = [of.meta, of.ready, of.delayed, of.index, of.message, of.dlx_outbox, of.dead, *of.living]
    exists, ready, delayed, unacked, dead, consumers, oldest_ms, paused, until, *counted, arguments, size = commands.call(
        script("queue_overview"), places
    )
    if not exists:
        raise QueueNotFound(f"there is no queue {queue!r}")
    published, delivered, rejected = counted
    declared = _declared(arguments)
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
        rejected=stored_number(rejected),
        arguments=_shown(declared),
        limits=_limits(declared, ready + delayed, unacked, stored_number(size)),
    )


def _declared(text: bytes) -> QueueArguments:
    try:
        return QueueArguments.decode(text)
    except InvalidArgument:
        # Somebody else wrote them, or a later version.
        return QueueArguments()


def _shown(declared: QueueArguments) -> dict[str, object]:
    flags = {"durable": declared.durable, "exclusive": declared.exclusive, "auto_delete": declared.auto_delete}
    return {**{name: True for name, is_set in flags.items() if is_set}, **declared.arguments}


def _limits(declared: QueueArguments, waiting: int, unacked: int, size: int) -> tuple[LimitUse, ...]:
    limits = Limits.of(declared)
    uses = (
        ("x-max-length", waiting, limits.max_length),
        ("x-max-pending", waiting + unacked, limits.max_pending),
        ("x-max-length-bytes", size, limits.max_bytes),
        (OF_CONSUMERS, unacked, declared.max_unacked),
    )
    return tuple(LimitUse(name, used, most) for name, used, most in uses if most is not None)


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
