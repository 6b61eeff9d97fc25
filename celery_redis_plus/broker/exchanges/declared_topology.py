"""What this process has declared on a broker, so that it can declare it again should the server lose it (flush, eviction).

A declared queue or binding is meant to be there. What somebody deleted on purpose is not brought back: a deleted
queue leaves the list of queues or a tombstone there, an exchange's last binding a version (`lua/bind.lua`). Only a flush takes
these marks, too; it is known by the database's own mark (`lua/database_id.lua`), which goes with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_redis_plus.broker.exchanges.known_queues import MAX_KNOWN_QUEUES, KnownQueues
from celery_redis_plus.broker.exchanges.routing import encode_binding
from celery_redis_plus.connection.cluster_address import slot_of, tag_of
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import OptionError, OtherDataFormat, ShardsRaised
from celery_redis_plus.keys import FORMAT_VERSION, SHARDS_FORMAT_VERSION
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
    from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord
    from celery_redis_plus.broker.exchanges.routing import Binding
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Sessions that owned queues and are over: so many are remembered.
MAX_GONE = 1000


def check_mark(database_id: bytes, shards: int) -> None:
    """See that a process with the option `shards` may use the database with this mark.

    A mark is FORMAT.ID, and FORMAT.ID.SHARDS where the broker is one of several shards, with the numbers behind it that it had
    before; one that names no format is of format 1.

    Raises:
        OtherDataFormat: a version of this package with another data format has written it.
        ShardsRaised: its queues were spread over this number of shards before.
        OptionError: its queues are spread over another number of shards.
    """
    number, dot, _ = database_id.partition(b".")
    found_format = int(number) if dot and number.isdigit() else 1
    found, *former = numbers_of_shards(database_id)
    known = SHARDS_FORMAT_VERSION if found > 1 else FORMAT_VERSION
    # Format 1 with several shards is what development versions have written.
    if found_format not in {FORMAT_VERSION, known}:
        raise OtherDataFormat(
            f"the data in this database has format version {found_format}, and this version of celery-redis-plus knows format "
            f"version {known}. What to do: {OtherDataFormat.remedy}"
        )
    if found != shards:
        text = (
            f"transport option shards={shards} is not allowed for this broker; allowed: {found}, the number of shards that "
            "its queues are spread over, for all of its processes"
        )
        if shards in former:
            raise ShardsRaised(f"{text}, which was raised from {shards}. What to do: set the option to {found}", found)
        raise OptionError(f"{text}. What to do to raise it: `celery-redis-plus shards raise`")


def id_of_mark(database_id: bytes) -> str:
    """Return what a mark names its database by, whatever format and number of shards it tells."""
    number, dot, rest = database_id.partition(b".")
    found = rest.partition(b".")[0] if dot and number.isdigit() else number
    return found.decode("utf-8", "replace")


def numbers_of_shards(database_id: bytes) -> list[int]:
    """Return the number of shards that a mark tells, and those that the broker had before, the last one first."""
    return [int(part) for part in database_id.split(b".")[2:] if part.isdigit()] or [1]


class DeclaredTopology:
    """Shared by all channels of a process and its maintenance tasks."""

    def __init__(self, shards: int = 1, on_flush: Callable[[], None] = lambda: None) -> None:
        """Know nothing yet; `shards` is the option, `on_flush` is called when the database was flushed."""
        self._shards = shards
        self._lock = lock_of(self)
        #: What was read of queues' records, no matter which process declared them.
        self.records = KnownQueues()
        self._queues: dict[str, QueueArguments] = {}
        #: The transient ones of them, in the order of their declarations: a process may declare any number of reply queues.
        self._transient: dict[str, None] = {}
        self._exchanges: dict[str, ExchangeRecord] = {}
        self._bindings: dict[str, dict[str, Binding]] = {}
        self._database_id = b""
        #: Exclusive queue -> what its record says of the session that owns it.
        self.owners: dict[str, bytes] = {}
        #: Sessions of this process that owned queues and are over.
        self.gone: dict[str, None] = {}
        #: Queue -> how its declaration here differs from that of others, as it was told last.
        self._mismatches: dict[str, str] = {}
        #: How often the database was found flushed.
        self.flushes = 0
        self._on_flush = on_flush
        #: Called with the number of shards where the broker has more of them by now.
        self.on_raised: Callable[[int], None] = lambda _: None

    def trust(self, database_id: bytes) -> None:
        """Take a mark for the right one, whatever number of shards it tells: who raises that uses both."""
        self._database_id = database_id

    def note_gone(self, session: str) -> None:
        """Remember that a session that owned queues is over; the oldest are forgotten."""
        self.gone[session] = None
        while len(self.gone) > MAX_GONE:
            with suppress(StopIteration, RuntimeError):
                self.gone.pop(next(iter(self.gone)), None)

    @property
    def unchecked(self) -> bool:
        """Whether the database's mark has not been read yet."""
        return not self._database_id

    def last_reserved_id(self, keys: Keys) -> int:
        """Return the number after which the ids of queues begin: no two brokers with a slot each have one in common.

        They are in the tags of messages, and one channel may have messages of several brokers.
        """
        return slot_of(keys.prefix) << 26 if tag_of(keys.prefix) else 0

    def check_mark(self, database_id: bytes | None) -> None:
        """See that this process may use the database with this mark, None where there is none. Raises as `check_mark`."""
        if database_id is not None:
            check_mark(database_id, self._shards)

    def has_mark(self, database_id: bytes | None) -> bool:
        """Return whether a mark is the one that was read last."""
        return database_id == self._database_id

    def check_flush(self, commands: CommandConnection, keys: Keys) -> None:
        """Look at the database's mark: where it is another one than before, the database was flushed.

        Raises:
            OtherDataFormat: a version of this package with another data format has written it.
            OptionError: processes with another number of `shards` use it.
            redis.exceptions.RedisError: as `CommandConnection.call`.
        """
        if self._database_id and self.has_mark(commands.command("GET", keys.database_id)):
            return
        own = f"{FORMAT_VERSION}.{secrets.token_hex(8)}"
        if self._shards > 1:
            # Versions that know no shards refuse the number; they would read past the rest.
            own = f"{SHARDS_FORMAT_VERSION}.{secrets.token_hex(8)}.{self._shards}"
        database_id = bytes(commands.call(script("database_id"), [keys.database_id], own))
        try:
            check_mark(database_id, self._shards)
        except ShardsRaised as raised:
            self.on_raised(raised.shards)
            raise
        with self._lock:
            flushed = self._database_id not in {b"", database_id}
            self.flushes += flushed
            self._database_id = database_id
        if flushed:
            self._on_flush()

    # -- queues -----------------------------------------------------------------------------------------------------------

    def is_new_mismatch(self, queue: str, difference: str) -> bool:
        """Note how a declaration here differs from that of others; return whether that was not told yet."""
        told = self._mismatches.get(queue)
        self._mismatches[queue] = difference
        return told != difference

    def queue(self, name: str) -> QueueArguments | None:
        """Return what this process declared the queue with."""
        return self._queues.get(name)

    def declared(self, name: str, arguments: QueueArguments) -> None:
        """Note a queue."""
        self._queues[name] = arguments
        self._transient.pop(name, None)
        if arguments.transient:
            self._transient[name] = None
            while len(self._transient) > MAX_KNOWN_QUEUES:
                with suppress(RuntimeError):
                    oldest = next(iter(self._transient))
                    self._transient.pop(oldest, None)
                    self._queues.pop(oldest, None)

    def deleted(self, name: str) -> None:
        """Forget a queue, and its record."""
        self._queues.pop(name, None)
        self._transient.pop(name, None)
        self.records.forget(name)

    # -- exchanges and bindings -------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> ExchangeRecord | None:
        """Return what this process declared the exchange as."""
        return self._exchanges.get(name)

    def declared_exchange(self, name: str, record: ExchangeRecord) -> None:
        """Note an exchange."""
        self._exchanges[name] = record

    def deleted_exchange(self, name: str) -> None:
        """Forget an exchange and its bindings."""
        with self._lock:
            self._exchanges.pop(name, None)
            self._bindings.pop(name, None)

    def bindings(self, exchange: str) -> list[Binding]:
        """Return the bindings that this process made and did not remove."""
        with self._lock:
            return list(self._bindings.get(exchange, {}).values())

    def bound_exchanges(self) -> list[str]:
        """Return the exchanges to which this process has bound a queue."""
        with self._lock:
            return [name for name, bindings in self._bindings.items() if bindings]

    def bound_queues(self) -> set[str]:
        """Return the lasting queues that this process declared and has bound to an exchange."""
        with self._lock:
            names = {binding.queue for bindings in self._bindings.values() for binding in bindings.values()}
        known = {name: self._queues.get(name) for name in names}
        return {name for name, arguments in known.items() if arguments is not None and not arguments.transient}

    def binds(self, queue: str) -> bool:
        """Return whether this process has bound a queue to an exchange."""
        with self._lock:
            return any(binding.queue == queue for bindings in self._bindings.values() for binding in bindings.values())

    def bound(self, exchange: str, binding: Binding) -> None:
        """Note a binding."""
        with self._lock:
            self._bindings.setdefault(exchange, {})[encode_binding(binding)] = binding

    def unbound(self, exchange: str, bindings: Iterable[Binding]) -> None:
        """Forget bindings."""
        with self._lock:
            known = self._bindings.get(exchange, {})
            for binding in bindings:
                known.pop(encode_binding(binding), None)
