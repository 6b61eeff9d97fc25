"""Exchanges and bindings as all processes share them, with a cache that costs a publisher no round trip of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.arguments.limits import Limits
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord, decode_exchange, encode_exchange
from celery_redis_plus.broker.exchanges.routing import (
    Binding,
    RoutingTable,
    binding_prefix,
    check_binding,
    decode_binding,
    encode_binding,
)
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.errors import InvalidArgument, PreconditionFailed
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import FanoutKeys, Keys

logger = logging.getLogger(__name__)

BINDINGS_VERSION = b"version"
#: Exchanges that are looked through in one write.
EXCHANGES_A_SCAN = 50
#: Seconds for which bindings that were seen on the server count as known; the mark that the last one's removal leaves there
#: lasts longer (`lua/bind.lua`).
FRESH_S = 1800.0


class _Known(NamedTuple):
    """An exchange's record, and its text on the server, by which a change is noticed."""

    record: ExchangeRecord
    text: bytes


@dataclass(slots=True)
class _Cached:
    """An exchange's bindings as they were read."""

    version: int
    table: RoutingTable
    #: When the server last confirmed it, on `clock`, in seconds.
    confirmed_at: float


class Bindings:
    """The shared topology over one connection."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        topology: DeclaredTopology | None = None,
        fanout_keys: Callable[[str], FanoutKeys] | None = None,
    ) -> None:
        """Read and write over `commands`. What is declared goes into `topology`, and is declared again should it vanish.

        `fanout_keys` spells the keys of a fanout exchange; without it none with limits can be declared.
        """
        self._commands = commands
        self._keys = keys
        self._fanout_keys = fanout_keys
        self._topology = DeclaredTopology() if topology is None else topology
        self._first_flush = self._topology.flushes
        #: Exchange -> the flush after which its bindings were declared again.
        self._flushes: dict[str, int] = {}
        #: As they were read last. A publish that goes by one has the server compare (`lua/publish_fanout.lua`).
        self._records: dict[str, _Known] = {}
        self._tables: dict[str, _Cached] = {}
        #: What somebody else wrote, and cannot be read: told once. Exchange and text of a record, or of a binding.
        self._told: set[tuple[str, bytes]] = set()
        self._failures = KeyFailures(logger, "has bindings that cannot be read", kind="exchange")
        self._restore_failures = KeyFailures(logger, "cannot be declared again, with its bindings", kind="exchange")

    # -- exchanges ------------------------------------------------------------------------------------------------------

    def declare(self, exchange: str, record: ExchangeRecord) -> None:
        """Store the exchange, or check that the one that stands agrees. A record that cannot be read is replaced.

        Raises:
            InvalidArgument: the type or an argument is not allowed.
            PreconditionFailed: it exists with another type, durability or other arguments.
        """
        record.check(exchange)
        # Asked each time: another process may have deleted it, and declared it as another one.
        text = self._store(exchange, record)
        try:
            current = self._note(exchange, text)
        except InvalidArgument as error:
            logger.warning("%s: it is declared anew", error, extra={"exchange": exchange})
            current = self._note(exchange, self._store(exchange, record, unreadable=text))
        difference = None if record.is_same(current) else record.difference(current, exchange)
        if difference is not None:
            raise PreconditionFailed(difference)
        self._topology.declared_exchange(exchange, record)

    def _note(self, exchange: str, text: bytes) -> ExchangeRecord:
        """Remember a record as it stands on the server, and return it.

        Raises:
            InvalidArgument: it cannot be read; the next declaration of the exchange replaces it.
        """
        known = self._records.get(exchange)
        if known is None or known.text != text:
            try:
                record = decode_exchange(text)
            except InvalidArgument as error:
                raise InvalidArgument(f"the record of exchange {exchange!r} cannot be read ({error})") from error
            known = self._records[exchange] = _Known(record, text)
        return known.record

    def _store(self, exchange: str, record: ExchangeRecord, *, unreadable: bytes = b"") -> bytes:
        """Store a record where there is none, or one with the text `unreadable`; return the one that stands."""
        if self._topology.unchecked:
            self.check_flush()
        keys, more = [self._keys.exchanges], []
        arguments = record.limits(exchange)
        if arguments is not None:
            assert self._fanout_keys is not None  # noqa: S101 - only sessions and the maintenance service declare
            keys.append(self._fanout_keys(exchange).meta)
            more = [Limits.of(arguments).encode(), arguments.encode()]
        stands: bytes = self._commands.call(
            script("declare_exchange"), keys, encode_name(exchange), encode_exchange(record, exchange), unreadable, *more
        )
        return stands

    def record(self, exchange: str) -> ExchangeRecord | None:
        """Return the exchange's record as it stands on the server now, None where there is none."""
        stored = self._commands.command("HGET", self._keys.exchanges, encode_name(exchange))
        if stored is None:
            self._records.pop(exchange, None)
            return None
        return self._note(exchange, stored)

    def known(self, exchange: str) -> ExchangeRecord | None:
        """Return the exchange's record as it was read last: what goes by it has the server compare, or looks again."""
        known = self._records.get(exchange)
        return self.record(exchange) if known is None else known.record

    def text_of(self, exchange: str) -> bytes:
        """Return the text of the record that `known` returns; it must be one."""
        return self._records[exchange].text

    def is_fanout(self, exchange: str) -> bool:
        """Tell whether the exchange is a fanout exchange, by what `known` returns."""
        record = self.known(exchange)
        return record is not None and record.type == "fanout"

    def alternates(self, exchange: str) -> Iterator[str]:
        """Yield the exchanges that get unroutable messages of `exchange`: its `alternate-exchange`, that one's own, and so on.

        Each comes once, so a circle ends; the chain ends as well, with a warning, at an exchange that does not exist or whose
        record cannot be read. It goes by what `known` returns when each is asked for: who takes them one by one, and tries
        each, goes by the last declarations.
        Source: https://www.rabbitmq.com/docs/ae
        """
        met = {exchange}
        while True:
            record = self.known(exchange)
            alternate = None if record is None else record.alternate_exchange
            if alternate is None or alternate in met:
                return
            try:
                what = "does not exist" if self.known(alternate) is None else ""
            except InvalidArgument:
                what = "has a record that cannot be read"
            if what:
                logger.warning(
                    "the alternate exchange %r of exchange %r %s", alternate, exchange, what, extra={"exchange": exchange}
                )
                return
            met.add(alternate)
            yield alternate
            exchange = alternate

    def names(self) -> list[str]:
        """Return the names of all exchanges."""
        return [decode_name(name) for name in self._commands.command("HKEYS", self._keys.exchanges)]

    def of_type(self, kind: str) -> dict[str, ExchangeRecord]:
        """Return the exchanges of a type: name -> record. Those whose record cannot be read are left out."""
        flat = self._commands.command("HGETALL", self._keys.exchanges)
        records = {}
        for name, text in zip(map(decode_name, flat[::2]), flat[1::2], strict=True):
            try:
                records[name] = decode_exchange(text)
            except InvalidArgument as error:
                line = f"the record of exchange {name!r} cannot be read ({error}): it is left out until it is declared again"
                self._tell(name, text, line)
        return {name: record for name, record in records.items() if record.type == kind}

    def _tell(self, exchange: str, text: bytes, line: str) -> None:
        """Log once what is wrong with a record, or with a binding."""
        if (exchange, text) not in self._told:
            self._told.add((exchange, text))
            logger.warning("%s", line, extra={"exchange": exchange})

    def delete(self, exchange: str) -> None:
        """Remove the exchange and its bindings; its queues stay."""
        self._topology.deleted_exchange(exchange)
        self._commands.command("HDEL", self._keys.exchanges, encode_name(exchange))
        self._commands.call(script("bind"), [self._keys.binding(exchange)], "clear")
        self._records.pop(exchange, None)
        self._tables.pop(exchange, None)

    # -- bindings -------------------------------------------------------------------------------------------------------

    def bind(self, exchange: str, binding: Binding) -> None:
        """Add a binding; adding it again changes nothing.

        Raises:
            InvalidArgument: the arguments do not fit the exchange's type.
        """
        record = self.known(exchange)
        if record is not None:
            check_binding(record.routing_type, binding)
        self._commands.call(script("bind"), [self._keys.binding(exchange)], "bind", encode_binding(binding))
        self._topology.bound(exchange, binding)
        self._tables.pop(exchange, None)

    def unbind(self, exchange: str, *bindings: Binding) -> None:
        """Remove bindings; those that do not exist are passed over."""
        self._topology.unbound(exchange, bindings)
        self._commands.call(script("bind"), [self._keys.binding(exchange)], "unbind", *map(encode_binding, bindings))
        self._tables.pop(exchange, None)

    def touch(self, exchange: str) -> None:
        """Have all publishers to an exchange read its bindings again."""
        self._commands.call(script("bind"), [self._keys.binding(exchange)], "touch")

    def all(self, exchange: str) -> list[Binding]:
        """Return the exchange's bindings as they are on the server."""
        return self._read(exchange)[1]

    def of_queue(self, queue: str) -> list[tuple[str, Binding]]:
        """Return the bindings of a queue, each with its exchange, sorted; found as `unbind_queues` finds them."""
        prefix = binding_prefix(queue).encode()
        found = self._scan(prefix)
        bound = [(exchange, one) for exchange, fields in found.items() for one in self._decoded(exchange, sorted(fields))]
        return sorted(bound, key=lambda one: (one[0], one[1].routing_key))

    def unbind_queues(self, queues: Collection[str]) -> list[tuple[str, Binding]]:
        """Remove every binding of the queues, from all exchanges; return (exchange, binding) of each.

        The server looks through the bindings, a page at a time, and tells only those of the queue where there is one. An exchange
        whose bindings cannot be read is logged, and passed over.
        """
        prefixes = tuple(binding_prefix(queue).encode() for queue in queues)
        removed = []
        for exchange, fields in self._scan(prefixes[0] if len(prefixes) == 1 else b"").items():
            doomed = self._decoded(exchange, (field for field in fields if field.startswith(prefixes)))
            if doomed:
                self.unbind(exchange, *doomed)
                removed += [(exchange, binding) for binding in doomed]
        return removed

    def _scan(self, prefix: bytes) -> dict[str, dict[bytes, None]]:
        """Return the fields of the bindings of each exchange that begin so."""
        # Only now: a process that publishes deletes no queues, mostly.
        from celery_redis_plus.connection.scans import SCANNED_A_CALL, escaped_glob

        pattern = escaped_glob(prefix) + b"*"
        found: dict[str, dict[bytes, None]] = {}
        open_pages = [(name, b"0") for name in self.names()]
        while open_pages:
            asked, open_pages = open_pages[:EXCHANGES_A_SCAN], open_pages[EXCHANGES_A_SCAN:]
            scans = [("HSCAN", self._keys.binding(name), at, "MATCH", pattern, "COUNT", SCANNED_A_CALL) for name, at in asked]
            for (name, _), reply in zip(asked, self._commands.pipeline(scans), strict=True):
                if isinstance(reply, ResponseError):
                    self._failures.contain(reply, name)
                    continue
                cursor, page = reply
                found.setdefault(name, {}).update(dict.fromkeys(page[::2]))
                if cursor != b"0":
                    open_pages.append((name, cursor))
        return found

    # -- routing --------------------------------------------------------------------------------------------------------

    def route(self, exchange: str, routing_key: str, headers: Mapping[str, object]) -> tuple[str, ...]:
        """Return the queues for a message by the bindings known here; a fresh look where they give none."""
        cached = self._tables.get(exchange)
        queues = () if cached is None else cached.table.route(routing_key, headers)
        return queues or self.refresh(exchange).route(routing_key, headers)

    def known_route(self, exchange: str, routing_key: str, headers: Mapping[str, object]) -> tuple[str, ...] | None:
        """Return the queues for a message by the bindings known here; None where none were read yet."""
        cached = self._tables.get(exchange)
        return None if cached is None else cached.table.route(routing_key, headers)

    def known_table(self, exchange: str) -> RoutingTable | None:
        """Return the bindings known here; None where none were read yet."""
        cached = self._tables.get(exchange)
        return None if cached is None else cached.table

    def routed_by(self, exchange: str) -> tuple[bytes, int]:
        """Return what `route` went by: the key of the bindings and their version, as `Outgoing.routed_by`."""
        return self._keys.binding(exchange), self._tables[exchange].version

    def confirm(self, exchange: str) -> None:
        """Note that the server has just compared the bindings with those known here."""
        self._tables[exchange].confirmed_at = clock.now_s()

    def ask_for_changes(self, exchange: str) -> Check:
        """Ask for the exchange's version beside the next call; the answer tells whether `route` used old bindings."""
        return Check(self._commands, self._keys.binding(exchange), self._tables[exchange])

    def refresh(self, exchange: str) -> RoutingTable:
        """Read the exchange's record and bindings again. If the server has lost them, declare what this process knows."""
        if self._topology.unchecked:
            self.check_flush()
        known = self._records.get(exchange)
        # In this order: a flush after the look at the mark is noticed the next time; so is another declaration, by the version.
        flushes = self._flushes_of(exchange)
        version, bindings = self._read(exchange)
        record = self.record(exchange)
        flushed = flushes is not None and flushes != self._flushes.get(exchange, self._first_flush)
        if flushes is not None and (not version or flushed):
            lost = self._lost_bindings(exchange)
            if record is None and (lost or flushed):
                record = self._restore_record(exchange, known)
            restored = self._restore(exchange, [binding for binding in lost if binding not in bindings])
            self._flushes[exchange] = flushes
            if restored:
                version, bindings = self._read(exchange)
        # Behind them: a queue that has gone to another shard was unbound when the number of shards was another already.
        self.check_flush()
        table = RoutingTable("direct" if record is None else record.routing_type, bindings)
        self._tables[exchange] = _Cached(version, table, clock.now_s())
        return table

    # -- what the server has lost -----------------------------------------------------------------------------------------

    def check_flush(self) -> None:
        """Notice a flush. Raises as `CommandConnection.call` does."""
        self._topology.check_flush(self._commands, self._keys)

    def ask_whether_lost(self, queues: Collection[str], in_doubt: Callable[[], None]) -> None:
        """Ask whether the database's mark, the records of `queues` and what was bound here are as they were, with the next call.

        `in_doubt` is called, while that call reads its answers, where one is not, or cannot be asked. Raises as `connect` does.
        """
        asked: list[tuple[Argument, ...]] = [("HEXISTS", self._keys.queue(queue).meta, "id") for queue in queues]
        asked += [("HGET", self._keys.binding(exchange), BINDINGS_VERSION) for exchange in self._topology.bound_exchanges()]

        def answered(is_fine: bool) -> None:
            if not is_fine:
                in_doubt()

        def answered_mark(mark: bytes | None, _: Exception | None) -> None:
            answered(self._topology.has_mark(mark))

        self._commands.command_nowait("GET", self._keys.database_id, done=answered_mark, buffered=True)
        for command in asked:
            self._commands.command_nowait(*command, done=lambda reply, _: answered(bool(reply)), buffered=True)

    def restore_lost(self, exchanges: Sequence[str]) -> None:
        """Declare again what this process has bound to these exchanges, where the server has lost it. They are asked together."""
        asked = [("HGET", self._keys.binding(exchange), BINDINGS_VERSION) for exchange in exchanges]
        for exchange, version in zip(exchanges, self._commands.pipeline(asked) if asked else (), strict=True):
            with self._restore_failures.alone(exchange):
                if isinstance(version, Exception):
                    raise version
                if not version or self._flushes.get(exchange, self._first_flush) != self._topology.flushes:
                    self.refresh(exchange)

    def _flushes_of(self, exchange: str) -> int | None:
        """Return how often the database was flushed; None where nothing is known of the exchange that could be lost."""
        known = exchange in self._tables or exchange in self._records
        if not known and not self._topology.bindings(exchange):
            return None
        self.check_flush()
        return self._topology.flushes

    def _restore_record(self, exchange: str, known: _Known | None) -> ExchangeRecord | None:
        """Declare the exchange again as it is known here, if it is; return its record."""
        record = self._topology.exchange(exchange) or (None if known is None else known.record)
        return None if record is None else self._note(exchange, self._store(exchange, record))

    def _lost_bindings(self, exchange: str) -> list[Binding]:
        """Return the bindings that this process made, and those that the server has confirmed lately."""
        known = dict.fromkeys(self._topology.bindings(exchange))
        cached = self._tables.get(exchange)
        if cached is not None and clock.now_s() - cached.confirmed_at < FRESH_S:
            known |= dict.fromkeys(cached.table.bindings)
        return list(known)

    def _restore(self, exchange: str, lost: list[Binding]) -> bool:
        """Declare bindings again; return whether there were any."""
        missing = [binding for binding in lost if not self._has_left(binding.queue)]
        if not missing:
            return False
        logger.warning(
            "bindings of exchange %r have vanished from the server (flushed or evicted): the %d known here are declared again",
            exchange, len(missing), extra={"exchange": exchange},
        )  # fmt: skip
        self._commands.call(script("bind"), [self._keys.binding(exchange)], "bind", *map(encode_binding, missing))
        return True

    def _has_left(self, queue: str) -> bool:
        """Tell whether a queue was transient and is gone, by itself or with its consumer: its bindings went with it."""
        arguments = self._topology.queue(queue)
        if arguments is None or not arguments.transient:
            return False
        return not self._commands.command("HEXISTS", self._keys.queue(queue).meta, "id")

    def _read(self, exchange: str) -> tuple[int, list[Binding]]:
        flat = self._commands.command("HGETALL", self._keys.binding(exchange))
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        version: bytes = fields.pop(BINDINGS_VERSION, b"0")
        bindings = self._decoded(exchange, fields)
        if version.isdigit() and len(version) < 17:
            return int(version), bindings
        self._tell(exchange, version, f"the version of the bindings of exchange {exchange!r} is no number: it is written anew")
        return int(self._commands.call(script("bind"), [self._keys.binding(exchange)], "bind")), bindings

    def _decoded(self, exchange: str, fields: Iterable[bytes]) -> list[Binding]:
        """Return bindings; one that cannot be read is left out, and named in the log."""
        bindings = []
        for field in fields:
            try:
                bindings.append(decode_binding(field))
            except InvalidArgument as error:
                line = f"exchange {exchange!r}: {error}; it is left out (celery-redis-plus check --repair removes it)"
                self._tell(exchange, field, line)
        return bindings


class Check:
    """The question whether an exchange's bindings have moved on, sent along with a publish."""

    def __init__(self, commands: CommandConnection, key: bytes, known: _Cached) -> None:
        self._known = known
        self.moved = False
        commands.command_nowait("HGET", key, BINDINGS_VERSION, done=self._answered)

    def _answered(self, reply: bytes | None, error: Exception | None) -> None:
        # Without an answer they have to be read again.
        self.moved = error is not None or (reply or b"0") != b"%d" % self._known.version
        if not self.moved:
            self._known.confirmed_at = clock.now_s()
