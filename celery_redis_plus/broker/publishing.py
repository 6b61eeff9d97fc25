"""Puts messages into queues, each one once, however often its publisher has to retry.

How, and why remembering only the last sequence loses messages: docs/design/0003-idempotent-publish.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.errors import MessageTooLarge, OutcomeUnknown, QueueNotFound
from celery_redis_plus.message import MAX_BODY, Outgoing
from celery_redis_plus.scripts import Script, script

if TYPE_CHECKING:
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.topology.wire import Wire

#: What the publish script answers for a queue without a record.
NO_QUEUE = b"NOQUEUE"
#: A staged body whose publisher died vanishes after this time. Milliseconds.
STAGED_TTL_MS = 300_000


@dataclass(slots=True)
class _Number:
    producer: bytes
    number: int
    born: float


@dataclass(slots=True)
class Attempt:
    """What a publisher has to remember of a message until the server has confirmed it: the number it went out under.

    One attempt belongs to one logical publish and outlives its retries, also on other channels and connections.
    """

    #: Target (queue or stream) -> number; only targets whose outcome is unknown.
    pending: dict[str, _Number] = field(default_factory=dict)
    #: Targets that have confirmed.
    done: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Target:
    """Where broadcasts to one fanout exchange go."""

    exchange: str
    stream: bytes
    #: Prefix of the producers' records.
    producer: bytes
    #: Entries the stream keeps, about.
    maxlen: int


class Publisher:
    """Publishes over one wire."""

    def __init__(self, wire: Wire, keys: Keys, *, dedup_window_s: float, on_missing: Callable[[str], bool]) -> None:
        """Publish over `wire`.

        Args:
            wire: the connection; its lock orders the messages.
            keys: spells the keys.
            dedup_window_s: how long the server remembers a producer, in seconds.
            on_missing: called with a queue's name when the queue has no record; returns whether it has one now.
        """
        self._wire = wire
        self._keys = keys
        self._window_s = dedup_window_s
        self._window_ms = int(dedup_window_s * 1000)
        self._on_missing = on_missing
        self._publish = script("publish")
        self._publish_fanout = script("publish_fanout")

    def to_queue(self, queue: str, message: Outgoing, attempt: Attempt) -> bool:
        """Put `message` into `queue`; return False where the queue is gone and must not come back.

        Raises:
            MessageTooLarge: the body is over 512 MB.
            OutcomeUnknown: a retry that comes after the server has forgotten the first try.
            redis.exceptions.RedisError: as `errors.translate` names it; `attempt` remembers what the retry needs.
        """
        if queue in attempt.done:
            return True
        check_size(message)
        reply = self._put(queue, message, attempt)
        if reply == NO_QUEUE:
            if not self._on_missing(queue):
                attempt.done.add(queue)
                return False
            reply = self._put(queue, message, attempt)
            if reply == NO_QUEUE:
                raise QueueNotFound(f"queue {queue!r} vanished while a message was published to it; nothing was stored")
        attempt.done.add(queue)
        return True

    def _put(self, queue: str, message: Outgoing, attempt: Attempt) -> bytes:
        keys = self._keys.queue(queue)
        with self._wire.lock:
            number, retry = self._number(queue, attempt)
            call_keys = [keys.meta, keys.ready, keys.delayed, keys.message, keys.bell, keys.timer, keys.producer + number.producer]
            if message.large:
                call_keys.append(self._stage(keys.message, message, number))
            return self._send(
                queue, number, attempt, self._publish, call_keys,
                message.payload, message.rank, message.eta, number.number, int(retry), self._window_ms,
            )  # fmt: skip

    def to_stream(self, target: Target, payload: bytes, routing_key: str, uuid: str, attempt: Attempt) -> None:
        """Append a broadcast to a fanout exchange's stream. Raises as `to_queue` does."""
        if target.exchange in attempt.done:
            return
        if len(payload) > MAX_BODY:
            raise MessageTooLarge(f"broadcast of {len(payload)} bytes to {target.exchange!r}: at most {MAX_BODY} bytes")
        with self._wire.lock:
            number, retry = self._number(target.exchange, attempt)
            self._send(
                target.exchange, number, attempt, self._publish_fanout, [target.stream, target.producer + number.producer],
                payload, routing_key, uuid, target.maxlen, number.number, int(retry), self._window_ms,
            )  # fmt: skip
        attempt.done.add(target.exchange)

    def _number(self, target: str, attempt: Attempt) -> tuple[_Number, bool]:
        """Return the number to send under, and whether that number went out before."""
        pending = attempt.pending.get(target)
        if pending is not None:
            age_s = time.monotonic() - pending.born
            if age_s > self._window_s:
                raise OutcomeUnknown(
                    f"publishing to {target!r} was tried {age_s:.0f} s ago without an answer; the server remembers "
                    f"{self._window_s:.0f} s (option publish_dedup_window): the message may or may not be there"
                )
            return pending, True
        wire = self._wire
        wire.connect()
        wire.sequence += 1
        return _Number(wire.producer, wire.sequence, time.monotonic()), False

    def _send(
        self, target: str, number: _Number, attempt: Attempt, what: Script, keys: Sequence[bytes], *arguments: bytes | str | int
    ) -> bytes:  # fmt: skip
        try:
            reply: bytes = self._wire.run(what, keys, *arguments)
        except BaseException:
            # A retry that is refused leaves the doubt about the first try; so does one that is lost.
            if self._wire.in_doubt:
                attempt.pending[target] = number
            raise
        return reply

    def _stage(self, message_prefix: bytes, message: Outgoing, number: _Number) -> bytes:
        """Put a large body beside the scripts; the key expires by itself if we die before the script takes it over."""
        key = message_prefix + b"staged." + number.producer + b"." + str(number.number).encode()
        for reply in self._wire.pipeline([("HSET", key, "body", message.body), ("PEXPIRE", key, STAGED_TTL_MS)]):
            if isinstance(reply, Exception):
                raise reply
        return key


def check_size(message: Outgoing) -> None:
    """Refuse what the server would refuse only after it was sent.

    Raises:
        MessageTooLarge: the body is over 512 MB.
    """
    if len(message.body) > MAX_BODY:
        raise MessageTooLarge(f"body of {len(message.body)} bytes: at most {MAX_BODY} bytes (Redis' limit of a string)")
