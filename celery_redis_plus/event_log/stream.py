"""The events of an application's queues on one server: which queues have some, what each stream holds, and its entries."""

from __future__ import annotations

import gc
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import ResponseError

from celery_redis_plus.connection.broker_at import broker_at
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.refused_calls import describe_refusal
from celery_redis_plus.connection.server_check import parse_info
from celery_redis_plus.error_translation import translate
from celery_redis_plus.errors import CommandUnavailable, EventsLost, NoPermission, UnknownEventSchema, WrongKeyType
from celery_redis_plus.event_log.event_logs import Entry, LogServer, chosen
from celery_redis_plus.event_log.offsets import Id, Offsets
from celery_redis_plus.events import SCHEMA_VERSION, ended_epochs, entry_id, read_entry
from celery_redis_plus.keys import Keys, QueueKeys, decode_name
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from redis.connection import Connection

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Entries asked for in one command where they have payloads, of 1 MB each at most.
PAYLOADS_A_REPLY = 32
#: Bytes of payloads in a list of entries.
PAYLOAD_BYTES = 32 * 1024 * 1024
#: Commands that are sent before the first of their replies is read.
REPLIES_AHEAD = 2

#: Fields of `events_meta` that say how a queue's events are numbered.
NUMBERED_BY = ("version", "epoch", "ended", "removed", "run")


class EventLog(LogServer):
    """Reads the events of one broker; a context manager that opens its connection when it is first used.

    Args:
        url: the broker's URL, as Celery has it.
        prefix: the `global_keyprefix` that the application uses, if it is not in the URL.
        timeout_s: seconds that the server may take for one answer.

    Raises:
        InvalidAddress: the URL cannot be used.
        OptionError: an option in the URL cannot, or URL and `prefix` name two applications.
    """

    def __init__(self, url: str, prefix: str = "", *, timeout_s: float = 60.0) -> None:
        self._use(*broker_at(url, prefix=prefix), timeout_s)

    @classmethod
    def at(cls, address: Address, options: Options, *, timeout_s: float = 60.0) -> Self:
        """Return the events of an application that connects to `address` with `options`."""
        log = cls.__new__(cls)
        log._use(address, options, timeout_s)  # noqa: SLF001 - of this class
        return log

    def another(self) -> Self:
        """Return one of the same broker, with a connection of its own."""
        return self.at(self.address, self._connector.options, timeout_s=self._timeout_s)

    def _use(self, address: Address, options: Options, timeout_s: float) -> None:
        self.address = address
        self._connector = Connector(address, options)
        self.keys = Keys(self._connector.options.global_keyprefix)
        self._timeout_s = timeout_s
        self._held: Connection | None = None

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        held, self._held = self._held, None
        if held is not None:
            held.disconnect()

    def ping(self) -> None:
        """See that the server answers. Raises as `ask`."""
        self.ask([("PING",)])

    # ---- queues

    def known(self) -> list[str]:
        """Return the names of all queues that have events, or had some."""
        (members,) = self.ask([("SMEMBERS", self.keys.event_logs)])
        return sorted(map(decode_name, members))

    def queues(self, wanted: str = "*") -> list[str]:
        """Return the names of the queues that have events and that `wanted` names, sorted. Raises as `EventLogs.queues`."""
        return chosen({queue: queue for queue in self.known()}, wanted, self.where)

    @property
    def where(self) -> str:
        """Prefix and address, for messages."""
        return f"under prefix {self.keys.prefix!r} at {self.address.display()}"

    def queue_of(self, name: str) -> str:
        """Return the name: it is the queue's."""
        return name

    def shard_of(self, name: str) -> int:  # noqa: ARG002 - of the interface
        """Return 0."""
        return 0

    @property
    def unreachable(self) -> Mapping[int, Exception]:
        """None: an error of the broker is raised."""
        return {}

    def parts(self, queues: Collection[str]) -> Iterator[tuple[LogServer, dict[str, QueueKeys]]]:
        """Yield this broker, and the keys of the queues; nothing for no queues."""
        if queues:
            yield self, {queue: self.keys.queue(queue) for queue in queues}

    def everywhere(self, queue: str) -> Iterator[tuple[LogServer, QueueKeys]]:
        """Yield this broker, and the queue's keys."""
        yield self, self.keys.queue(queue)

    def numberings(self, queues: Sequence[str], *, strict: bool = True) -> dict[str, Offsets]:
        """Return what the stream of each queue has now.

        Args:
            queues: their names.
            strict: refuse a stream whose ids do not count its events, since losses could not be told.

        Raises:
            UnknownEventSchema: a later release wrote there.
            EventsLost: a stream was deleted and begun anew under the same numbers.
        """
        commands: list[tuple[Any, ...]] = []
        for queue in queues:
            commands += _numbered_by(self.keys.queue(queue))
        replies, run = self.ask(commands, missing_ok=True), self._run()
        return {
            queue: _numbering(queue, replies[2 * place], replies[2 * place + 1], run, strict=strict)
            for place, queue in enumerate(queues)
        }

    def _run(self) -> bytes:
        """Return the server's `run_id`; empty where it does not tell."""
        try:
            (info,) = self.ask([("INFO", "server")])
        except ResponseError as error:
            logger.debug("INFO is refused: %s", error)
            return b""
        return parse_info(info).get("run_id", "").encode()

    def sound_numberings(
        self, queues: Sequence[str], *, strict: bool = True
    ) -> tuple[dict[str, Offsets], dict[str, Exception]]:  # fmt: skip
        """Return what `numberings` does, and by queue the error where its events cannot be read.

        Somebody else has written one of its keys of events, or a later release writes there.

        Raises:
            EventsLost: as `numberings`.
        """
        commands: list[tuple[Any, ...]] = []
        for queue in queues:
            keys = self.keys.queue(queue)
            commands += [*_numbered_by(keys), ("HMGET", keys.events_readers, "-")]
        replies, run = self.ask(commands, missing_ok=True, foreign_ok=True), self._run()
        found: dict[str, Offsets] = {}
        foreign: dict[str, Exception] = {}
        for place, queue in enumerate(queues):
            meta, info, readers = replies[3 * place : 3 * place + 3]
            error = next((reply for reply in (meta, info, readers) if isinstance(reply, Exception)), None)
            try:
                if error is None:
                    found[queue] = _numbering(queue, meta, info, run, strict=strict)
            except (ValueError, UnknownEventSchema) as odd:
                error = odd
            if error is not None:
                foreign[queue] = error
        return found, foreign

    def mark(self) -> bytes | None:
        """Return the mark of the database, as `LogServer.mark`."""
        try:
            mark: bytes | None = self.ask([("GET", self.keys.database_id)])[0]
        except (NoPermission, CommandUnavailable) as error:
            logger.debug("GET is refused: %s", error)
            return None
        return mark

    # ---- entries

    def chunks(self, queue: str, epoch: int, low: int, high: int, size: int) -> Iterator[list[Entry]]:
        """Yield the entries `epoch`-`low` to `epoch`-`high` in lists of at most `size`; one that was trimmed is missing.

        The next ones are asked for before a list is handed out, so that the server works while the caller decodes. A payload may
        have 1 MB: a list has 32 MB of them at most, and so has a reply. Small replies come first, and grow where none has one.
        """
        keys = self.keys.queue(queue)
        ((with_payloads,),) = self.ask([("HMGET", keys.events_meta, "payload")])
        most = min(size, PAYLOADS_A_REPLY) if with_payloads == b"1" else size
        width, asked, unread = min(size, PAYLOADS_A_REPLY), low, 0
        held: list[Entry] = []
        held_bytes = 0
        while asked <= high or unread:
            while asked <= high and unread < REPLIES_AHEAD:
                self._send([("XRANGE", keys.events, f"{epoch}-{asked}", f"{epoch}-{min(asked + width - 1, high)}")])
                asked, unread = asked + width, unread + 1
            with _without_collections():
                entries = self._read()
            unread -= 1
            payloads = _payload_bytes(entries)
            width = min(size, PAYLOADS_A_REPLY) if payloads else min(most, 2 * width)
            if held and (len(held) + len(entries) > size or held_bytes + payloads > PAYLOAD_BYTES):
                yield held
                held, held_bytes = [], 0
            held += entries
            held_bytes += payloads
        if held:
            yield held

    def first_after(self, numbering: Offsets, ms: int) -> int:
        """Return the position before the first event whose `ts` is `ms` (since the epoch) or later, by bisection.

        The server's clock may have been set back; the position is then one of the possible ones.
        """
        low, high = numbering.trimmed, numbering.total
        while low < high:
            middle = (low + high) // 2
            if self._time_ms(numbering.queue, numbering.id(middle + 1)) < ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _time_ms(self, queue: str, position: Id) -> int:
        """Return the `ts` of the event at `position`, or of the next one that is there, in ms."""
        start = f"{position[0]}-{position[1]}"
        # The next one, and more of them only where it is no event.
        for count in (1, 1000):
            (entries,) = self.ask([("XRANGE", self.keys.queue(queue).events, start, "+", "COUNT", count)])
            for _, fields in entries:
                event = read_entry(fields)
                if event is not None:
                    return event.ts // 1000
        return 1 << 62

    # ---- the connection

    def ask(
        self, commands: Sequence[tuple[Any, ...]], *, missing_ok: bool = False, foreign_ok: bool = False
    ) -> list[Any]:  # fmt: skip
        """Run commands in one round trip and return their replies, as `LogServer.ask`."""
        self._send(commands)
        # All replies are read before an error is raised: none may be left in the connection.
        replies = [self._read(raise_errors=False) for _ in commands]
        for place, reply in enumerate(replies):
            if missing_ok and isinstance(reply, ResponseError) and "no such key" in str(reply):
                replies[place] = None
            elif isinstance(reply, Exception):
                error = translate(reply, self.address, describe_refusal(reply, commands[place]))
                if not (foreign_ok and isinstance(error, WrongKeyType)):
                    raise error
                replies[place] = error
        return replies

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> None:
        try:
            if self._held is None:
                self._held = self._connector.open("events", timeout=self._timeout_s)
            self._held.send_packed_command(self._held.pack_commands(commands))
        except Exception as error:  # noqa: BLE001 - translated and raised
            self._give_up(error)

    def _read(self, *, raise_errors: bool = True) -> Any:
        assert self._held is not None  # noqa: S101 - something was sent
        try:
            return self._held.read_response(disable_decoding=True)
        except ResponseError as error:
            if raise_errors:
                self._give_up(error)
            return error
        except Exception as error:  # noqa: BLE001 - translated and raised
            return self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.close()
        translated = translate(error, self.address)
        raise translated from (None if translated is error else error)


def _numbered_by(keys: QueueKeys) -> list[tuple[Any, ...]]:
    return [("HMGET", keys.events_meta, *NUMBERED_BY), ("XINFO", "STREAM", keys.events)]


def _payload_bytes(entries: Sequence[Entry]) -> int:
    return sum(sum(map(len, fields)) for _, fields in entries if len(fields) > 2)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python's cycle collector out of a reply: 10,000 lists without a cycle would make it search the whole heap again and
    again (measured: 1.1 µs an event instead of 6 in a process with 400,000 objects).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _numbering(queue: str, meta: list[bytes | None], info: list[Any] | None, run: bytes, *, strict: bool) -> Offsets:
    version, epoch, ended, removed, written_in = meta
    if int(version or SCHEMA_VERSION) > SCHEMA_VERSION:
        raise UnknownEventSchema(
            f"queue {queue!r} has events of schema version {int(version or 0)}; this release reads up to {SCHEMA_VERSION}. "
            "Upgrade celery-redis-plus where it reads events"
        )
    past = tuple(ended_epochs((ended or b"").decode()))
    if info is None or epoch is None:
        return Offsets(queue, past + (((int(epoch), 0),) if epoch else ()), None)
    stream = dict(zip(info[::2], info[1::2], strict=True))
    last = entry_id(stream[b"last-generated-id"])
    first = stream[b"first-entry"]
    # `lua/include/log_event.lua` ends an epoch with the first event that another run of the server writes.
    is_over = bool(run and written_in) and written_in != run
    numbering = Offsets(queue, (*past, last), entry_id(first[0]) if first else None, is_over=is_over)
    # Streams that were removed with their queue are counted, too.
    if strict and stream[b"entries-added"] + stored_number(removed) != numbering.total:
        raise EventsLost(
            f"queue {queue!r}: its stream has had {stream[b'entries-added']} events and its ids count {numbering.total}: it was "
            "deleted and begun anew, or written to by somebody else. Delete its events and events_meta keys together"
        )
    return numbering
