"""Moves messages from kombu's own Redis transport to this one, in the same database: each in one step of a script."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.broker.publishing.publisher import STAGED_TTL_MS
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.migration.conversion import Converted, PriorityMapping, UnreadableError, from_kombu
from celery_redis_plus.migration.kombu_broker import PAGE, PAGE_BYTES
from celery_redis_plus.migration.report import Report
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import BODY_SEPARATOR, LARGE_BODY

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.migration.kombu_broker import KombuBroker, KombuUnacked

#: Bytes of messages after which a script call takes no more: a call blocks the server.
BYTES_A_CALL = 500_000
NO_QUEUE = "this broker has no such queue: start a worker that consumes it, or name it with --declare"


@dataclass(frozen=True, slots=True)
class _Found:
    """A message in kombu's list or hash."""

    #: As it stands there.
    text: bytes
    #: Empty in a list.
    delivery_tag: bytes
    converted: Converted


class Importer:
    """Takes messages of one kombu installation into the queues of the same database."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, queues: Queues, kombu: KombuBroker, mapping: PriorityMapping
    ) -> None:  # fmt: skip
        """Move over `commands`; `kombu` reads over the same connection."""
        self._commands = commands
        self._keys = keys
        self._queues = queues
        self._kombu = kombu
        self._mapping = mapping
        self.report = Report()

    def take_waiting(self, queue: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Move what waits in a queue's lists, by their step; yield after each page how many were moved.

        Raises:
            OptionError: nobody has said what shall become of priorities.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        for step in self._kombu.steps:
            skip, count = 0, 1
            while not stopped():
                page = self._kombu.waiting(queue, step, skip, count)
                if not page:
                    break
                moved, unreadable = self._take(queue, [(text, b"", text) for text in page], self._list_keys(queue, step))
                if moved is None:
                    self._leave_rest(queue)
                    return
                if not moved and not unreadable:
                    # Others have taken the whole page; what is left is found by the next pass.
                    break
                # Those that stay are passed over from now on.
                skip += unreadable
                count = _next_count(count, page)
                yield moved

    def take_unacked(
        self, older_than_s: float, only: Callable[[str], bool], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[int]:
        """Move what kombu's workers have had for that long, those delivered first before the others; yield as `take_waiting`.

        A worker that still works on one finds nothing to ack at its end. `only` selects queues.
        Raises as `take_waiting` does.
        """
        until_s = server_ms(self._commands) / 1000 - older_than_s
        skip = 0
        while not stopped():
            page = self._kombu.unacked(skip, until_s)
            if not page:
                return
            by_queue: dict[str | None, list[KombuUnacked]] = {}
            for one in page:
                by_queue.setdefault(self._queue_of(one), []).append(one)
            wanted = [(queue, those) for queue, those in by_queue.items() if queue is not None and only(queue)]
            total = sum(self._take_unacked_of(queue, those) for queue, those in wanted)
            skip += len(page) - total
            yield total

    def _take_unacked_of(self, queue: str, those: Sequence[KombuUnacked]) -> int:
        found = [(one.text, one.delivery_tag, _message_in(one.text)) for one in those]
        moved, _ = self._take(queue, found, self._unacked_keys(queue))
        if moved is None:
            self.report.of(queue).leave(len(those), NO_QUEUE)
        self.report.of(queue).unacked += moved or 0
        return moved or 0

    def _queue_of(self, one: KombuUnacked) -> str | None:
        try:
            _, exchange, routing_key = json.loads(one.text)
        except (ValueError, TypeError):
            return None
        return self._kombu.queue_of(exchange or "", routing_key or "")

    def _leave_rest(self, queue: str) -> None:
        self.report.of(queue).leave(sum(self._kombu.lengths(queue).values()), NO_QUEUE)

    def _list_keys(self, queue: str, step: int) -> tuple[bytes, ...]:
        keys = self._kombu.keys
        return (*self._keys.queue(queue).publish, keys.list_of(queue, step), keys.unacked_index)

    def _unacked_keys(self, queue: str) -> tuple[bytes, ...]:
        keys = self._kombu.keys
        return (*self._keys.queue(queue).publish, keys.unacked, keys.unacked_index)

    def _take(
        self, queue: str, texts: Sequence[tuple[bytes, bytes, bytes]], keys: tuple[bytes, ...]
    ) -> tuple[int | None, int]:  # fmt: skip
        """Move messages: as they stand there, their delivery tag in the hash, and the message itself.

        Returns how many were moved, None where this broker has no such queue; and how many cannot be converted.
        """
        noted = self.report.of(queue)
        known = self._queues.read(queue)
        if known is None:
            return None, 0
        now_ms = server_ms(self._commands)
        found: list[_Found] = []
        unreadable = 0
        for text, tag, message in texts:
            try:
                found.append(_Found(text, tag, from_kombu(message, self._mapping, known.arguments.max_priority, now_ms)))
            except UnreadableError as error:
                unreadable += 1
                noted.leave(1, str(error))
        if any(one.converted.outgoing.life for one in found):
            self._queues.ensure_swept_once(queue)
        total = 0
        for batch in _batches(found):
            taken = self._call(queue, keys, batch)
            if taken is None:
                return None, unreadable
            for one, was_there in zip(batch, taken, strict=True):
                noted.delayed += was_there and one.converted.delayed
                noted.ready += was_there and not one.converted.delayed
            total += sum(taken)
        return total, unreadable

    def _call(self, queue: str, keys: tuple[bytes, ...], batch: Sequence[_Found]) -> Sequence[int] | None:
        arguments: list[Argument] = []
        for one in batch:
            message = one.converted.outgoing
            if len(message.body) > LARGE_BODY:
                keys, payload = (*keys, self._stage(queue, message.body)), message.envelope
            else:
                payload = b"%b%b%b" % (message.envelope, BODY_SEPARATOR, message.body)
            description = message.describe() if message.describe is not None else ""
            arguments += (one.text, one.delivery_tag, payload, message.rank, message.eta, message.life, description)
        taken = self._commands.call(script("take_from_kombu"), keys, *arguments)
        return None if taken == b"NOQUEUE" else taken

    def _stage(self, queue: str, body: bytes) -> bytes:
        """Put a large body beside the script, as a publisher does."""
        key = self._keys.queue(queue).message + b"staged." + secrets.token_hex(8).encode()
        for reply in self._commands.pipeline([("HSET", key, "body", body), ("PEXPIRE", key, STAGED_TTL_MS)]):
            if isinstance(reply, Exception):
                raise reply
        return key


def _batches(found: Sequence[_Found]) -> Iterator[list[_Found]]:
    """Split messages into what one script call takes; one with a large body is alone."""
    batch: list[_Found] = []
    size = 0
    for one in found:
        large = len(one.converted.outgoing.body) > LARGE_BODY
        if batch and (large or size >= BYTES_A_CALL):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.text)
        if large:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _next_count(count: int, page: Sequence[bytes]) -> int:
    """Return how many messages the next command reads: more of small ones, fewer of large ones."""
    size = max(1, sum(map(len, page)) // len(page))
    return max(1, min(PAGE, count * 4, PAGE_BYTES // size))


def _message_in(text: bytes) -> bytes:
    try:
        return json.dumps(json.loads(text)[0]).encode()
    except (ValueError, TypeError, IndexError, KeyError):
        return b""
