"""Suspects in what several slots hold together: the list of queues, their records and ids, bindings, keys that must expire.

No script can see them in one moment, so each suspect carries the repair, and the checker looks a second time before it
believes any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.exchanges.exchange_record import decode_exchange
from celery_redis_plus.broker.exchanges.routing import decode_binding
from celery_redis_plus.broker.integrity.rules import Violation
from celery_redis_plus.broker.queues.queue_ids import base_of, number_of
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.errors import InvalidArgument, WrongKeyType
from celery_redis_plus.keys import FORMAT_VERSION, encode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import TAG_FLAG, stored_number

if TYPE_CHECKING:
    from celery_redis_plus.broker.integrity.keyspace_scan import KeyspaceScan
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Milliseconds after which a transient queue's remains have outlived the janitors (`Queues.overdue`, `janitor.CLEAR_S`).
LEFT_BEHIND_MS = 90_000
#: Milliseconds until a key expires that lacks an expiry: the longest that any key needs by default.
MAX_EXPIRY_MS = 900_000
#: Commands in one write.
COMMANDS_A_WRITE = 500
BINDINGS_VERSION = b"version"
#: Characters before the queue's id in a tag (`lua/include/tag_flags.lua`).
TAG_FLAGS = {b".", b"~", b"-", b"=", b",", b"@", b"_", b"+"}
LASTING = float("inf")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A violation, if it is still there at the second look."""

    violation: Violation
    #: What repairs it; None where only a person can.
    repair: Callable[[], object] | None


@dataclass(frozen=True, slots=True)
class _Queue:
    """What the server says of one queue."""

    name: str
    #: Its score in the list of queues; None: it is not listed.
    listed: float | None
    id: bytes | None
    arguments: bytes | None
    format: int
    #: How long it lives unused, in ms; None: it is a lasting one.
    expires: bytes | None
    #: Its record is a key of another type.
    foreign: bool = False


class RegistryChecks:
    """Looks at what is no matter of one queue's slot."""

    def __init__(self, commands: CommandConnection, keys: Keys, queues: Queues) -> None:
        """Look over `commands`; `queues` declares and buries."""
        self._commands = commands
        self._keys = keys
        self._queues = queues

    def suspects(self, found: KeyspaceScan, only: str | None) -> Iterator[Suspect]:
        """Yield what does not agree, of one queue only if it is named."""
        names = [name for name in found.queues if only in {None, name}]
        queues = self._read(names)
        now_ms = server_ms(self._commands)
        always_swept = set(self._queues.registry.always_swept())
        for queue in queues:
            if queue.foreign:
                yield _of_another_type(queue.name, self._keys.queue(queue.name).meta)
            elif queue.id is None:
                yield from self._without_record(queue, found.queues[queue.name], now_ms)
            else:
                yield from self._with_record(queue, always_swept)
        if only is None:
            yield from self._ids(queues)
            for exchange in sorted(found.exchanges):
                yield from self._bindings(exchange, {queue.name: queue for queue in queues}, now_ms)
        yield from self._expiring({key: name for key, name in found.expiring.items() if only in {None, name}})

    def sound(self, names: list[str]) -> list[str]:
        """Return the queues that have a record which this version understands."""
        return [queue.name for queue in self._read(names) if queue.id is not None and queue.format <= FORMAT_VERSION]

    # -- queues -----------------------------------------------------------------------------------------------------------

    def _read(self, names: list[str]) -> list[_Queue]:
        queues = []
        for at in range(0, len(names), COMMANDS_A_WRITE):
            page = names[at : at + COMMANDS_A_WRITE]
            commands: list[tuple[bytes | str | int, ...]] = []
            for name in page:
                commands.append(("ZSCORE", self._keys.queues, encode_name(name)))
                commands.append(("HMGET", self._keys.queue(name).meta, "id", "arguments", "format", "expires", "ttl"))
            replies = self._commands.pipeline(commands)
            for number, name in enumerate(page):
                listed, record = replies[2 * number : 2 * number + 2]
                if isinstance(listed, Exception):
                    raise listed
                position = None if listed is None else float(listed)
                if isinstance(record, Exception):
                    if not concerns_keys(record):
                        raise record
                    queues.append(_Queue(name, position, None, None, 0, None, foreign=True))
                    continue
                queue_id, arguments, layout, expires, ttl = record
                queues.append(_Queue(name, position, queue_id, arguments, stored_number(layout), expires or ttl))
        return queues

    def _without_record(self, queue: _Queue, tags: list[bytes], now_ms: int) -> Iterator[Suspect]:
        name = queue.name
        stays, messages = self._remains(name, tags)
        if queue.listed == LASTING or (queue.listed is None and messages):
            detail = "its messages have no queue" if messages else "it is in the list of queues"
            yield Suspect(Violation("no-record", name, "", detail), partial(self._rewrite, name, tags))
        elif queue.listed is None:
            if stays:
                yield Suspect(
                    Violation("orphan-keys", name, "", "there is no such queue"), partial(self._queues.clear_away, name)
                )
        elif stays and queue.listed < now_ms - LEFT_BEHIND_MS:
            yield Suspect(Violation("left-behind", name, "", "its keys are still there"), partial(self._bury, name))

    def _bury(self, name: str) -> None:
        if self._queues.clear_away(name):
            self._queues.registry.bury(name)

    def _remains(self, name: str, tags: list[bytes]) -> tuple[bool, bool]:
        """Return whether a queue without a record has keys that stay, and whether it has messages that do."""
        keys = self._keys.queue(name)
        sets = [keys.ready, keys.delayed, keys.index, keys.dlx_outbox, keys.dead, keys.held]
        others = [keys.wakeup, keys.schedule_wakeup, keys.trash, keys.expiry]
        left = self._commands.ask([("PTTL", key) for key in (*sets, *others)])
        stay = [ttl_ms == -1 for ttl_ms in left]
        (numbers,) = self._commands.pipeline([("ZRANGE", keys.trash, 0, -1)])
        if isinstance(numbers, WrongKeyType):
            # `check_queue` tells of it, once there is a record.
            numbers = []
        trash = [keys.trash_set(number) for number in numbers]
        lasting = [left == -1 for left in self._commands.ask([("PTTL", keys.message + tag) for tag in tags])]
        trashed = [
            any(score is not None for score in self._commands.ask([("ZSCORE", key, tag) for key in trash])) for tag in tags
        ]
        messages = any(stay[: len(sets)]) or any(lasts and not gone for lasts, gone in zip(lasting, trashed, strict=True))
        return any(stay) or messages, messages

    def _rewrite(self, name: str, tags: list[bytes]) -> None:
        """Give a queue a record again, with its own id, which its tags carry behind time, counter and a mark."""
        known = [tag[TAG_FLAG.stop :] for tag in tags if tag[TAG_FLAG] in TAG_FLAGS]
        self._queues.restore(name, known[0] if known else b"")

    def _with_record(self, queue: _Queue, always_swept: set[str]) -> Iterator[Suspect]:
        name = queue.name
        if queue.format > FORMAT_VERSION:
            yield Suspect(Violation("newer-format", name, "", f"{queue.format}; this version knows {FORMAT_VERSION}"), None)
            return
        try:
            arguments = QueueArguments.decode(queue.arguments or b"")
        except InvalidArgument as error:
            yield Suspect(Violation("unreadable-record", name, "", str(error)), None)
            return
        if queue.listed is None or (queue.listed < 0 and queue.expires is not None):
            expires: int | str = "" if queue.expires is None else stored_number(queue.expires)
            yield Suspect(
                Violation("unlisted", name, "", "in no list of queues"), partial(self._queues.registry.enlist, name, expires)
            )
        if arguments.always_swept and name not in always_swept:
            detail = "no process sweeps it while it has no consumer"
            yield Suspect(Violation("unlisted", name, "always_swept", detail), partial(self._queues.registry.ensure_swept, name))

    def _ids(self, queues: list[_Queue]) -> Iterator[Suspect]:
        owners: dict[bytes, str] = {}
        for queue in queues:
            if queue.id is None:
                continue
            first = owners.setdefault(base_of(queue.id), queue.name)
            if first != queue.name:
                detail = f"{queue.id.decode(errors='replace')!r} is the id of {first!r} as well"
                yield Suspect(Violation("duplicate-id", queue.name, "", detail), partial(self._queues.renumber, queue.name))
        highest = max((number_of(queue_id) for queue_id in owners), default=0)
        drawn = stored_number(self._commands.command("GET", self._keys.queue_ids))
        if drawn < highest:
            detail = f"at {drawn}, and a queue has {highest}"
            yield Suspect(
                Violation("id-counter-behind", "", "", detail),
                # A process that draws meanwhile only moves it further.
                partial(self._commands.command, "INCRBY", self._keys.queue_ids, highest - drawn),
            )

    # -- bindings ---------------------------------------------------------------------------------------------------------

    def _bindings(self, exchange: str, queues: dict[str, _Queue], now_ms: int) -> Iterator[Suspect]:
        record = self._commands.command("HGET", self._keys.exchanges, encode_name(exchange))
        if record is not None:
            try:
                decode_exchange(record)
            except InvalidArgument as error:
                yield Suspect(Violation("unreadable-exchange", exchange, "", str(error)), None)
        key = self._keys.binding(exchange)
        try:
            flat = self._commands.command("HGETALL", key)
        except WrongKeyType:
            yield _of_another_type(exchange, key)
            return
        texts = dict(zip(flat[::2], flat[1::2], strict=True))
        if texts and not texts.get(BINDINGS_VERSION, b"").isdigit():
            # Versions start from the clock (`lua/bind.lua`, which replaces one that is no number), so that none comes twice.
            repair = (
                partial(self._commands.call, script("bind"), [key], "bind")
                if BINDINGS_VERSION in texts
                else partial(self._commands.command, "HSETNX", key, BINDINGS_VERSION, now_ms)
            )
            yield Suspect(Violation("no-version", exchange, "", "publishers do not notice changes"), repair)
        for text in texts.keys() - {BINDINGS_VERSION}:
            try:
                name = decode_binding(text).queue
            except InvalidArgument as error:
                yield Suspect(
                    Violation("unreadable-binding", exchange, text.decode(errors="replace"), str(error)),
                    partial(self._commands.call, script("bind"), [key], "unbind", text),
                )
                continue
            queue = queues.get(name)
            if queue is not None and (queue.id is not None or queue.foreign or queue.listed == LASTING):
                continue
            if queue is not None and queue.listed is not None and queue.listed >= now_ms - LEFT_BEHIND_MS:
                # A janitor clears it away soon.
                continue
            yield Suspect(
                Violation("dead-binding", exchange, text.decode(errors="replace"), f"there is no queue {name!r}"),
                partial(self._commands.call, script("bind"), [key], "unbind", text),
            )

    # -- keys that have to expire -----------------------------------------------------------------------------------------

    def _expiring(self, keys: dict[bytes, str]) -> Iterator[Suspect]:
        names = list(keys)
        for at in range(0, len(names), COMMANDS_A_WRITE):
            page = names[at : at + COMMANDS_A_WRITE]
            for key, left in zip(page, self._commands.ask([("PTTL", key) for key in page]), strict=True):
                if left == -1:
                    subject = key.decode(errors="replace")
                    yield Suspect(
                        Violation("never-expires", keys[key], subject, "a key that should vanish by itself"),
                        partial(self._commands.command, "PEXPIRE", key, MAX_EXPIRY_MS),
                    )


def _of_another_type(owner: str, key: bytes) -> Suspect:
    return Suspect(Violation("wrong-type", owner, key.decode(errors="replace"), "a key of another type"), None)
