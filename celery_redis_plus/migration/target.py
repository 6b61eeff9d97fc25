"""Stores messages of kombu's own Redis transport in the queues of this one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.publishing.publisher import stage
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.migration.conversion import Converted, PriorityMapping, UnreadableError, from_kombu
from celery_redis_plus.migration.report import Report
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import BODY_SEPARATOR, LARGE_BODY

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

#: Bytes of messages after which a script call takes no more: a call blocks the server.
BYTES_A_CALL: Final = 500_000
NO_QUEUE: Final = "this broker has no such queue: start a worker that consumes it, or name it with --declare"


@dataclass(frozen=True, slots=True)
class Found:
    """A message in kombu's list or hash."""

    #: As it stands there.
    text: bytes
    #: Its field in the hash; empty in a list.
    delivery_tag: bytes
    #: The message in it.
    message: bytes
    converted: Converted


def declare_lasting(queues: Queues, names: Sequence[str]) -> None:
    """Declare queues here without arguments; those that stand keep theirs."""
    for name in names:
        if not queues.exists(name):
            queues.declare(name, QueueArguments(durable=True))


class Target:
    """The queues of this transport, over one connection. Methods raise as `CommandConnection.call` does."""

    def __init__(self, commands: CommandConnection, keys: Keys, queues: Queues, mapping: PriorityMapping) -> None:
        self.commands = commands
        self.keys = keys
        self._queues = queues
        self._mapping = mapping
        self.report = Report()

    def convert(self, queue: str, texts: Sequence[tuple[bytes, bytes, bytes]]) -> list[Found] | None:
        """Convert messages: as they stand there, their field in the hash, and the message itself.

        Returns None where there is no such queue here. Those that cannot be read are left out, and noted in the report.

        Raises:
            OptionError: it is not said what shall become of priorities.
        """
        known = self._queues.read(queue)
        if known is None:
            return None
        now_ms = server_ms(self.commands)
        found: list[Found] = []
        for text, tag, message in texts:
            try:
                converted = from_kombu(message, self._mapping, known.arguments.max_priority, now_ms)
                found.append(Found(text, tag, message, converted))
            except UnreadableError as error:
                self.report.of(queue).leave(1, str(error))
        if any(one.converted.outgoing.life for one in found):
            self._queues.ensure_swept_once(queue)
        return found

    def store(
        self, name: str, queue: str, more_keys: tuple[bytes, ...], found: Sequence[Found],
        identity: Callable[[Found], tuple[Argument, ...]], *first: Argument,
    ) -> int | None:  # fmt: skip
        """Store messages by the script `name`; return how many were, None where there is no such queue.

        The script takes the keys of a publish and `more_keys`; and the arguments `first`, then for each message its
        `identity`, payload, rank, eta, expiry and description. It returns 1 for each message that it has stored.
        """
        total, noted = 0, self.report.of(queue)
        for batch in _batches(found):
            keys = (*self.keys.queue(queue).publish, *more_keys)
            arguments = list(first)
            for one in batch:
                message = one.converted.outgoing
                if len(message.body) > LARGE_BODY:
                    staged = stage(self.commands, self.keys.queue(queue), secrets.token_hex(8).encode(), message.body)
                    keys, payload = (*keys, staged), message.envelope
                else:
                    payload = b"%b%b%b" % (message.envelope, BODY_SEPARATOR, message.body)
                description = message.describe() if message.describe is not None else ""
                arguments += (*identity(one), payload, message.rank, message.eta, message.life, description)
            stored = self.commands.call(script(name), keys, *arguments)
            if stored == b"NOQUEUE":
                return None
            for one, new in zip(batch, stored, strict=True):
                noted.delayed += bool(new and one.converted.delayed)
                noted.ready += bool(new and not one.converted.delayed)
            total += sum(stored)
        return total


def _batches(found: Sequence[Found]) -> Iterator[list[Found]]:
    """Split messages into what one script call takes; one with a large body is alone."""
    batch: list[Found] = []
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
