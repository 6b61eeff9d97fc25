"""The register of subscribers on the server: who reads a stream, how far each one is, who has died."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.broker.fanout.entries import Mark, parse_id
from celery_redis_plus.broker.fanout.subscriber_cursor import DURABLE, SubscriberCounts, SubscriberCursor
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.record_fields import FANOUT_COUNTERS
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import FanoutKeys

#: Seconds for which a subscriber counts that is bound but not yet read.
BOUND_S = 60.0
#: Seconds between two looks for dead subscribers: their second chance.
SECOND_CHANCE_S = 30.0
#: Seconds for which a death is remembered, so that every process hears of it.
DEATH_KEPT_S = 600.0
#: States in which the deadline is the last heartbeat and the timeout.
HEARD_STATES = ("bound", "live")
#: Subscribers in one call.
SUBSCRIBERS_A_CALL = 100
#: Subscribers that one call looks at for those of lost processes.
SUSPECTS_A_CALL = 500
#: In a subscriber's label, between its host and its process.
PROCESS_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber as the registry has it.

    Attributes:
        id: its name in the registry. queue: whose broadcasts. durable: it keeps its cursor while it has no reader.
        state: `bound` (no reader yet), `live`, `suspect` (overdue once) or `left` (a durable one without a reader).
        cursor: id of the last entry that it has processed. lag: broadcasts that it has not processed.
        since_ms: when it subscribed; deadline_ms: when it is overdue, None for a durable one; heard_ms: its last heartbeat, None
        where it is suspect or has no reader; now_ms: when the registry was read; all in ms since the epoch, on the
        server's clock. host: where its reader runs, as `host:pid`. counts: what has happened to its broadcasts, as of its last
        report; of a durable one, with all its readers.
    """

    id: str
    queue: str
    durable: bool
    state: str
    cursor: str
    lag: int
    since_ms: int
    deadline_ms: int | None
    heard_ms: int | None
    now_ms: int
    host: str
    counts: SubscriberCounts


@dataclass(frozen=True, slots=True)
class SubscriberDeath:
    """A subscriber that was declared dead."""

    at_ms: int
    cursor: str
    unread: int
    host: str
    id: str

    @property
    def queue(self) -> str:
        """Whose broadcasts it read."""
        return self.id.partition(".")[2]


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How far a stream is: its newest id, and how many broadcasts there were."""

    entry: bytes
    count: int

    @property
    def mark(self) -> Mark:
        """The place after its newest entry."""
        return Mark(self.entry, self.count)

    def has_gone_back(self, mark: Mark) -> bool:
        """Return whether `mark` lies beyond it, so that a read from there would wait for ever.

        The server came back with older data, or the stream was deleted. (One that was deleted and is written again gives itself
        away to the reader, by its numbers.)
        """
        return parse_id(self.entry) < mark.id


class SubscriberRegistry:
    """The registers of all fanout exchanges, over one connection. All methods raise as `CommandConnection.call` does."""

    def __init__(self, commands: CommandConnection, *, timeout_s: float, max_age_s: float | None, process: str = "") -> None:
        """Keep subscribers for `timeout_s` without a sign of life, and entries for `max_age_s`; both in seconds.

        Those that subscribe are of `process`, as the registry of processes names it.
        """
        self._commands = commands
        self._timeout_ms = int(timeout_s * 1000)
        self._max_age_ms = int((max_age_s or 0) * 1000)
        self._label = f"{socket.gethostname()}:{os.getpid()}{PROCESS_SEPARATOR}{process}".replace(" ", "_")

    def subscribe(self, keys: FanoutKeys, queue: str, *, durable: bool) -> SubscriberCursor:
        """Register a subscriber from the stream's end on; a durable one from where it was."""
        position = SubscriberCursor(queue, keys, durable=durable)
        timeout_ms = min(int(BOUND_S * 1000), self._timeout_ms)
        cursor, number, redeliver_up_to = self._commands.call(
            script("subscribe_fanout"), keys.registry(), position.id, timeout_ms, self._label, position.durable_id
        )
        position.start(Mark(cursor, int(number)), redeliver_up_to)
        return position

    def unsubscribe(self, position: SubscriberCursor) -> None:
        """Unsubscribe, without waiting for the answer: what follows on the same connection finds it done."""
        position.ended = True
        cursor = position.cursor
        keys = position.keys
        self._commands.send_nowait(
            script("unsubscribe_fanout"), (keys.subscribers, keys.cursors, keys.records),
            position.id, cursor.entry, cursor.number, position.durable_id, 0,
        )  # fmt: skip

    def forget_durable(self, keys: FanoutKeys, queue: str) -> None:
        """Forget a queue's durable subscriber, if it has one: the queue was deleted or unbound."""
        self._commands.send_nowait(
            script("unsubscribe_fanout"), (keys.subscribers, keys.cursors, keys.records), "", "0-0", 0, f"{DURABLE}.{queue}", 1
        )

    def delete(self, keys: FanoutKeys) -> None:
        """Delete the stream of an exchange, and its registry."""
        self._commands.command("UNLINK", *keys.everything())

    def heartbeat(self, keys: FanoutKeys, positions: Sequence[SubscriberCursor]) -> StreamEnd:
        """Tell how far some subscribers of one stream are; return how far the stream is."""
        arguments = self._heartbeat_arguments(positions)
        entry, count = self._commands.call(script("heartbeat_fanout"), _heartbeat_keys(keys), *arguments)
        return StreamEnd(entry, int(count))

    def report_progress(self, position: SubscriberCursor) -> None:
        """Tell how far a subscriber is whose publishers may wait for it, without waiting for the answer."""
        arguments = self._heartbeat_arguments([position])
        self._commands.send_nowait(script("heartbeat_fanout"), _heartbeat_keys(position.keys), *arguments)

    def _heartbeat_arguments(self, positions: Sequence[SubscriberCursor]) -> list[Argument]:
        arguments: list[Argument] = [self._max_age_ms]
        for position in positions:
            cursor = position.cursor
            arguments += (
                position.id, self._timeout_ms, cursor.entry, cursor.number, self._label, position.durable_id,
                position.counts().encode(),
            )  # fmt: skip
        return arguments

    def reap(
        self, keys: FanoutKeys, since_ms: int | None = None, *, auto_delete: bool = False
    ) -> tuple[int, list[SubscriberDeath]]:
        """Remove the dead; return the server's time in ms, and all deaths after `since_ms` that any process noticed.

        None reports only what this call has found. Without subscribers the stream ends after `max_age_s`, and that of an
        `auto_delete` exchange after `timeout_s`, with its counters.
        """
        now, _, *deaths = self._commands.call(
            script("remove_expired_subscribers"), (*keys.registry(), keys.dead),
            self._max_age_ms, int(SECOND_CHANCE_S * 1000), int(DEATH_KEPT_S * 1000),
            "" if since_ms is None else since_ms, self._timeout_ms if auto_delete else 0,
        )  # fmt: skip
        return int(now), [_subscriber_death(text) for text in deaths]

    def suspect(self, keys: FanoutKeys, process: str, page: bytes) -> bytes:
        """Have publishers wait no longer for the subscribers of a lost process; their positions stay.

        Does the page behind `page`, b"" at first; returns the next one, b"" at the end.
        """
        _, following = self._commands.call(script("suspect_subscribers"), _heartbeat_keys(keys), page, SUSPECTS_A_CALL, process)
        return bytes(following)

    def processes_of(self, keys: FanoutKeys, subscribers: Collection[str]) -> set[str]:
        """Return the processes of some subscribers, '' for one that is unknown."""
        if not subscribers:
            return set()
        texts = self._commands.command("HMGET", keys.records, *map(encode_name, sorted(subscribers)))
        labels = [fields[5] for text in texts if text is not None and (fields := _record_fields(text))]
        return {label.partition(PROCESS_SEPARATOR)[2] for label in labels}

    def queues(self, keys: FanoutKeys) -> list[str]:
        """Return the queue of each subscriber of an exchange."""
        return [decode_name(subscriber).partition(".")[2] for subscriber in self._commands.command("HKEYS", keys.records)]

    def counters(self, keys: FanoutKeys) -> dict[str, int]:
        """Return the counters of an exchange, by their names in `record_fields.FANOUT_COUNTERS`."""
        values = self._commands.command("HMGET", keys.meta, *FANOUT_COUNTERS)
        return {name: int(value or 0) for name, value in zip(FANOUT_COUNTERS, values, strict=True)}

    def subscribers(self, keys: FanoutKeys) -> list[Subscriber]:
        """Return the subscribers of a stream, the one that lags most first; none whose record somebody else wrote."""
        now, _, count, *flat = self._commands.call(
            script("list_subscribers"), (keys.stream, keys.meta, keys.subscribers, keys.records)
        )
        found = []
        for at in range(0, len(flat), 3):
            name, deadline, record = flat[at : at + 3]
            fields = _record_fields(record)
            if not fields:
                continue
            cursor, number, since, timeout, state, label, *counts = fields
            identity = decode_name(name)
            kind, _, queue = identity.partition(".")
            heard = int(deadline) - int(timeout) if deadline and state in HEARD_STATES else None
            found.append(
                Subscriber(
                    id=identity, queue=queue, durable=kind == DURABLE, state=state, cursor=cursor,
                    lag=max(int(count) - int(number), 0), since_ms=int(since),
                    deadline_ms=int(deadline) if deadline else None, heard_ms=heard, now_ms=int(now), host=_host_of(label),
                    counts=SubscriberCounts.decode("".join(counts)),
                )
            )  # fmt: skip
        return sorted(found, key=lambda one: -one.lag)


def _heartbeat_keys(keys: FanoutKeys) -> tuple[bytes, ...]:
    return (*keys.registry(), keys.waiting_publishers)


def _record_fields(record: bytes) -> list[str]:
    """Return the fields of a subscriber's record (`lua/include/fanout.lua`); none where somebody else wrote it."""
    fields = decode_name(record).split(" ")
    numbers = fields[0].split("-") + fields[1:4]
    return fields if len(fields) >= 6 and all(number.isdecimal() for number in numbers) else []


def _subscriber_death(text: bytes) -> SubscriberDeath:
    at, cursor, _, missed, label, identity = decode_name(text).split(" ", 5)
    return SubscriberDeath(int(at), cursor, int(missed), _host_of(label), identity)


def _host_of(label: str) -> str:
    return label.partition(PROCESS_SEPARATOR)[0]
