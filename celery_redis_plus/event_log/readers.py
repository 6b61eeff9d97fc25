"""The readers of lifecycle events: what each has safe, and the trimming of what all of them have."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_redis_plus import scripts
from celery_redis_plus.errors import InvalidArgument, ReaderTaken, WrongKeyType
from celery_redis_plus.event_log.event_logs import log_passed_over
from celery_redis_plus.events import entry_id
from celery_redis_plus.keys import decode_name

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import EventLogs, LogServer
    from celery_redis_plus.event_log.offsets import Id, Offsets
    from celery_redis_plus.keys import QueueKeys

logger = logging.getLogger(__name__)

#: Seconds without a commit after which a reader is listed as stale.
STALE_AFTER_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Reader:
    """A registered reader of one queue's events.

    Attributes:
        name: as it registered.
        queue: the queue.
        position: the last event that it has safe, (epoch, n).
        behind: how many events it still has to read.
        idle_s: seconds since its last commit.
        lost: how many events were trimmed before it could read them.
    """

    name: str
    queue: str
    position: Id
    behind: int
    idle_s: float
    lost: int

    def stale(self, after_s: float = STALE_AFTER_S) -> bool:
        """Return whether it has events to read and has committed nothing for `after_s` seconds."""
        return self.behind > 0 and self.idle_s > after_s


def commit(
    log: EventLogs,
    reader: str,
    positions: Mapping[str, Id],
    *,
    lost: Mapping[str, int] | None = None,
    trim: bool = True,
    owner: str = "",
) -> int:
    """Note that `reader` has everything up to `positions` (by queue) safe; return how many events were trimmed.

    A position earlier than the noted one changes nothing; nothing is noted for a queue whose events were removed. One whose
    keys somebody else has written is logged and passed over, and one whose shard is gone on without (`EventLogs.reached`).

    Args:
        log: where the events are.
        reader: the reader's name; '' notes nothing and only trims.
        positions: the last event of each queue that is safe.
        lost: events of each queue that were gone before they were read, to be added to the reader's account.
        trim: remove what every registered reader has.
        owner: whose reader it is, without spaces; '' leaves the owner as it is.

    Raises:
        ReaderTaken: another owner has registered a reader of this name.
    """
    trimmed = 0
    for queue, (epoch, n) in positions.items():
        noted, account = (reader, f"{epoch}-{n}"), (lost or {}).get(queue, 0)
        try:
            trimmed += log.reached(queue, partial(_commit, noted=noted, account=account, trim=trim, owner=owner)) or 0
        except WrongKeyType as foreign:
            log_passed_over(queue, foreign)
    return trimmed


def _commit(log: LogServer, keys: QueueKeys, *, noted: tuple[str, str], account: int, trim: bool, owner: str) -> int:
    """Note the reader and position of a queue; return how many events were trimmed, in bounded steps."""
    (name, position), trimmed = noted, 0
    while step := _run(log, keys.events, keys.events_readers, name, position, account, int(trim), owner):
        trimmed += step
        name, account = "", 0
    return trimmed


def _run(log: LogServer, events: bytes, readers: bytes, *arguments: str | int) -> int:
    """Run the script; EVAL each time: a commit is rare, and a script cache may have been flushed."""
    source = scripts.script("commit_events").source
    try:
        (trimmed,) = log.ask([("EVAL", source, 2, events, readers, *arguments)])
    except ResponseError as error:
        if "OWNED by " not in str(error):
            raise
        raise ReaderTaken(
            f"reader {arguments[0]!r} is registered by another folder of tables; name this one's reader otherwise (--reader), or "
            f"remove the other one's: celery-redis-plus events drop-reader {arguments[0]}"
        ) from None
    return int(trimmed)


def readers(log: EventLogs, queues: Sequence[str]) -> list[Reader]:
    """Return the registered readers of `queues`, by queue and name; a record that somebody else has written is logged."""
    numberings = log.numberings(queues, strict=False)
    return sorted(
        (reader for own, keys in log.parts(queues) for reader in _readers(own, keys, numberings)),
        key=lambda reader: (queues.index(reader.queue), reader.name),
    )


def _readers(log: LogServer, of_queues: Mapping[str, QueueKeys], numberings: Mapping[str, Offsets]) -> list[Reader]:
    """Return the readers of queues that are on one server."""
    replies = log.ask([("HGETALL", keys.events_readers) for keys in of_queues.values()] + [("TIME",)])
    now = int(replies[-1][0]) + int(replies[-1][1]) / 1e6
    found = []
    for queue, reply in zip(of_queues, replies[:-1], strict=True):
        for name, value in sorted(zip(reply[::2], reply[1::2], strict=True)):
            try:
                position, ms, lost = value.decode().split(" ")[:3]
                at, idle_s, count = entry_id(position), now - int(ms) / 1000, int(lost)
            except ValueError:
                odd = "queue %r has a reader %r whose record was not written here: %r"
                logger.error(odd, queue, name, value[:100], extra={"queue": queue})  # noqa: TRY400 - the line tells all
                continue
            numbering = numberings[queue]
            found.append(Reader(decode_name(name), queue, at, numbering.total - numbering.position_of(at), idle_s, count))
    return found


def drop(log: EventLogs, reader: str, queues: Sequence[str]) -> int:
    """Forget `reader` for `queues`, so that it no longer keeps events; return for how many queues it was registered.

    Raises:
        InvalidArgument: it is registered for none of them.
    """
    dropped: int = sum(
        sum(own.ask([("HDEL", of_queue.events_readers, reader) for of_queue in keys.values()])) for own, keys in log.parts(queues)
    )
    if not dropped:
        known = sorted({registered.name for registered in readers(log, queues)})
        raise InvalidArgument(f"reader {reader!r} is not registered; registered: {', '.join(known) or 'none'}")
    return dropped
