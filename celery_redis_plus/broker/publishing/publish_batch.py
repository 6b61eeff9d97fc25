"""Publishes many messages in one round trip, with one script call for those of a queue."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from redis.exceptions import NoScriptError, RedisError

from celery_redis_plus.broker.arguments.deduplication import only_asks, read_duplicate
from celery_redis_plus.broker.publishing.publish_scripts import PublishScript
from celery_redis_plus.broker.publishing.publisher import DUPLICATE, NEED_METADATA, description_of
from celery_redis_plus.stored_message import BODY_SEPARATOR, LARGE_BODY

if TYPE_CHECKING:
    from celery_redis_plus.broker.publishing.attempt import PublishAttempt
    from celery_redis_plus.broker.publishing.publisher import Publisher
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.stored_message import Outgoing

#: Most messages of a script call, and bytes of their payloads after which it takes no more: a call blocks the server.
MESSAGES_A_CALL = 100
BYTES_A_CALL = 1_000_000


@dataclass(slots=True)
class BatchedMessage:
    """A message of a batch, and the queue that it goes to."""

    queue: str
    message: Outgoing
    attempt: PublishAttempt


M = TypeVar("M", bound=BatchedMessage)


@dataclass(slots=True)
class _Call(Generic[M]):
    """What one script call takes."""

    queue: str
    #: The record that messages of it depend on; empty: none does.
    queue_id: bytes = b""
    messages: list[M] = field(default_factory=list)
    size: int = 0
    #: A producer of its own: a call that is stored says nothing about those before it in the same write, which may be refused.
    producer: bytes = field(default_factory=lambda: secrets.token_hex(6).encode())

    @property
    def full(self) -> bool:
        return len(self.messages) >= MESSAGES_A_CALL or self.size >= BYTES_A_CALL

    def mark_unknown(self) -> None:
        """Note that it is unknown whether the call has arrived. Its messages are numbered from 1."""
        for number, one in enumerate(self.messages, 1):
            one.attempt.mark_unknown(self.queue, self.producer, number)

    def confirm(self, reply: list[bytes]) -> list[bytes]:
        """Note what became of each message; return what the records of their numbers have in place of the producer's id."""
        stored = []
        for number, (one, answer) in enumerate(zip(self.messages, reply, strict=True), 1):
            one.attempt.confirm(self.queue)
            if one.message.deduplication is not None and answer.startswith(DUPLICATE):
                one.attempt.duplicate_of, one.attempt.duplicate_task = read_duplicate(answer.removeprefix(DUPLICATE))
            else:
                stored.append(b"%b:%d" % (self.producer, number))
        return [self.producer] if len(stored) == len(self.messages) else stored


class BatchPublisher:
    """Publishes batches over one connection."""

    def __init__(self, commands: CommandConnection, keys: Keys, publisher: Publisher, *, dedup_window_s: float) -> None:
        """Publish over `commands`, as `publisher` does; the server remembers a producer for `dedup_window_s` seconds."""
        self._commands = commands
        self._event_logged = publisher.event_logged
        self._window_ms = int(dedup_window_s * 1000)
        self._publish = PublishScript("publish_batch", keys, lambda of: of.publish_ordinary)

    def takes(self, message: Outgoing) -> bool:
        """Return whether a message can be published in a batch: one that is due at once, and has nothing that needs a look."""
        if message.deduplication is not None and not only_asks(message.deduplication):
            return False
        return not (message.eta or message.life or message.limited or len(message.body) > LARGE_BODY)

    def to_queues(self, batch: Sequence[M]) -> tuple[list[M], Exception | None]:
        """Put messages into their queues, in one write, those of a queue in their order.

        Returns the messages that have to be published one by one, and the error that is the reason, if one is: the connection
        failed, or the server refused. The attempts of the others have confirmed. Where the outcome is unknown, their attempts say
        so: such a message is stored once, however often it is published with its attempt.
        """
        left, failure, undescribed = self._publish_once(batch)
        if undescribed:
            further, error, _ = self._publish_once(undescribed)
            left, failure = left + further, failure or error
        return left, failure

    def _publish_once(self, batch: Sequence[M]) -> tuple[list[M], Exception | None, list[M]]:
        """Publish as `publish`; return the messages, too, to whose queues their descriptions have to be sent along."""
        commands, calls = self._commands, list(_calls(batch))
        with commands.exclusive():
            try:
                replies = commands.pipeline([self._packed(call) for call in calls], self._publish.script)
            except (RedisError, OSError) as error:
                if commands.outcome_unknown:
                    for call in calls:
                        call.mark_unknown()
                return list(batch), error, []
        left: list[M] = []
        undescribed: list[M] = []
        failure: Exception | None = None
        over: list[bytes] = []
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, list):
                over += [self._publish.keys(call.queue, producer)[-1] for producer in call.confirm(reply)]
            elif reply == NEED_METADATA and call.queue not in self._event_logged:
                undescribed += call.messages
            else:
                left += call.messages
                if isinstance(reply, Exception) and not isinstance(reply, NoScriptError):
                    failure = failure or reply
                    # An event that cannot be written is an error behind what is stored.
                    call.mark_unknown()
        self._event_logged.update(one.queue for one in undescribed)
        if over:
            # No retry will ask for them; else each batch would leave a key for the whole dedup window.
            commands.command_nowait("UNLINK", *over, done=lambda _reply, _error: None, buffered=True)
        return left, failure, undescribed

    def _packed(self, call: _Call[M]) -> tuple[Argument, ...]:
        keys = self._publish.keys(call.queue, call.producer)
        arguments: list[Argument] = [len(call.messages), self._window_ms, call.queue_id]
        for one in call.messages:
            message = one.message
            payload = b"%b%b%b" % (message.envelope, BODY_SEPARATOR, message.body)
            described = description_of(message) if call.queue in self._event_logged else b""
            arguments += (payload, message.rank, message.deduplication or b"", described)
        return "EVALSHA", self._publish.script.sha, len(keys), *keys, *arguments


def _calls(batch: Sequence[M]) -> Iterator[_Call[M]]:
    """Split messages into what one script call can take. One that depends on no record goes with those that depend on any."""
    calls: dict[str, _Call[M]] = {}
    for one in batch:
        call = calls.get(one.queue)
        needed = one.message.queue_id
        if call is not None and (call.full or (call.queue_id and needed and call.queue_id != needed)):
            yield calls.pop(one.queue)
            call = None
        if call is None:
            call = calls[one.queue] = _Call(one.queue)
        call.queue_id = call.queue_id or needed
        call.messages.append(one)
        call.size += len(one.message.body) + len(one.message.envelope)
    yield from calls.values()
