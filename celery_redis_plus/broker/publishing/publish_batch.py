"""Publishes many messages in one round trip, with one script call for those of a queue."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from redis.exceptions import NoScriptError, RedisError

from celery_redis_plus.broker.publishing.publish_scripts import PublishScript
from celery_redis_plus.stored_message import BODY_SEPARATOR, LARGE_BODY

if TYPE_CHECKING:
    from celery_redis_plus.broker.publishing.attempt import PublishAttempt
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
    #: The record that the messages depend on; empty: on none.
    queue_id: bytes
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


class BatchPublisher:
    """Publishes batches over one connection."""

    def __init__(self, commands: CommandConnection, keys: Keys, *, dedup_window_s: float) -> None:
        """Publish over `commands`; the server remembers a producer for `dedup_window_s` seconds."""
        self._commands = commands
        self._window_ms = int(dedup_window_s * 1000)
        self._publish = PublishScript("publish_batch", keys, lambda of: of.publish_ordinary)

    def takes(self, message: Outgoing) -> bool:
        """Return whether a message can be published in a batch: one that is due at once, and has nothing that needs a look."""
        return not (message.eta or message.life or message.deduplication or message.limited or len(message.body) > LARGE_BODY)

    def to_queues(self, batch: Sequence[M]) -> tuple[list[M], Exception | None]:
        """Put messages into their queues, in one write, those of a queue in their order.

        Returns the messages that have to be published one by one, and the error that is the reason, if one is: the connection
        failed, or the server refused. The attempts of the others have confirmed. Where the outcome is unknown, their attempts say
        so: such a message is stored once, however often it is published with its attempt.
        """
        commands, calls = self._commands, list(_calls(batch))
        with commands.exclusive():
            try:
                replies = commands.pipeline([self._packed(call) for call in calls], self._publish.script)
            except (RedisError, OSError) as error:
                if commands.outcome_unknown:
                    for call in calls:
                        call.mark_unknown()
                return list(batch), error
        left: list[M] = []
        failure: Exception | None = None
        self._forget_producers(call for call, reply in zip(calls, replies, strict=True) if isinstance(reply, list))
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, list):
                for one in call.messages:
                    one.attempt.confirm(call.queue)
            else:
                left += call.messages
                if isinstance(reply, Exception) and not isinstance(reply, NoScriptError):
                    failure = failure or reply
        return left, failure

    def _forget_producers(self, confirmed: Iterable[_Call[M]]) -> None:
        """Have the server forget the producers of calls that it has confirmed, with the next write: no retry will ask for them.

        Else each batch would leave a key for the whole dedup window.
        """
        keys = [self._publish.keys(call.queue, call.producer)[-1] for call in confirmed]
        if keys:
            self._commands.command_nowait("UNLINK", *keys, done=lambda _reply, _error: None, buffered=True)

    def _packed(self, call: _Call[M]) -> tuple[Argument, ...]:
        keys = self._publish.keys(call.queue, call.producer)
        arguments: list[Argument] = [len(call.messages), self._window_ms, call.queue_id]
        for one in call.messages:
            arguments += (b"%b%b%b" % (one.message.envelope, BODY_SEPARATOR, one.message.body), one.message.rank)
        return "EVALSHA", self._publish.script.sha, len(keys), *keys, *arguments


def _calls(batch: Sequence[M]) -> Iterator[_Call[M]]:
    """Split messages into what one script call can take."""
    calls: dict[str, _Call[M]] = {}
    for one in batch:
        call = calls.get(one.queue)
        if call is not None and (call.full or call.queue_id != one.message.queue_id):
            yield calls.pop(one.queue)
            call = None
        if call is None:
            call = calls[one.queue] = _Call(one.queue, one.message.queue_id)
        call.messages.append(one)
        call.size += len(one.message.body) + len(one.message.envelope)
    yield from calls.values()
