"""The consumers of a queue as the server knows them: who joins, is on the list, or leaves.

The words of a consumer's state are those of queue consumer management in AMQP brokers: *interested* (it waits for work),
*notified* (it was woken and takes messages until none is left), *not interested* (it has no credit).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.arguments.eta import time_of_ms
from celery_redis_plus.broker.queue_failures import QueueFailures
from celery_redis_plus.errors import AccessRefused, ResourceLocked
from celery_redis_plus.keys import decode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import stored_number
from celery_redis_plus.version import __version__

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Consumers, and unacked messages, that one script call reads when it lists them.
LIST_PAGE = 500
INTERESTED, NOTIFIED, NOT_INTERESTED = "interested", "notified", "not interested"
#: In a consumer's id, between the session and the consumer's number.
CONSUMER_ID_SEPARATOR = "."
#: Seconds between two tries of a consumer in whose way there are others that may be dead, and how long it tries in all: a process
#: without connections has `connection_lost_grace`.
TRY_AGAIN_S, DEAD_WITHIN_S = 0.2, 10.0
#: Values that `check_consumers` returns for a consumer.
STANDING_VALUES = 9
#: What the join script answers -> what that means.
REFUSALS = {
    b"exclusive": "has an exclusive consumer",
    b"in use": "has consumers, so it cannot be consumed exclusively",
    b"locked": "belongs to another connection, which declared it with exclusive=True",
}
#: Told the processes whose consumers are in the way of a new one. Returns whether to try again soon: all of them have ended, as
#: far as the server knows, and their consumers leave.
HaveEnded = Callable[[Collection[str]], bool]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer of this process."""

    #: The holder's name on the server (the session's id), and a number.
    id: str
    queue: str
    #: What AMQP calls it; unique on its channel only.
    tag: str
    #: `x-priority` of AMQP: a consumer of a higher one gets every message while it has credit.
    priority: int = 0
    #: It wants the queue alone.
    exclusive: bool = False
    #: Which messages it takes, as `broker.arguments.header_filter` packs it; empty: all.
    filter: str = ""
    #: Tells its state; asked from another thread.
    state: Callable[[], str] = field(default=lambda: INTERESTED, compare=False)
    #: Told that its queue was deleted and declared again, by whomever; from another thread.
    on_redeclared: Callable[[], None] = field(default=lambda: None, compare=False)
    #: Told that its queue was deleted, and is not declared again; from another thread.
    on_deleted: Callable[[], None] = field(default=lambda: None, compare=False)


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """How a queue was when its consumers were looked for."""

    #: When that was asked, on `clock`, in seconds.
    at: float
    #: How many consumers it has, of all processes.
    consumers: int
    #: Id of its record; empty: it has none.
    record_id: bytes
    #: It has no messages, and nothing to clear away.
    empty: bool
    #: It is transient, nothing was ever published to it, and its record lives as long as was asked for.
    unpublished: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """What the server says of a consumer and its queue."""

    consumer: Consumer
    #: False: it is off the list, and has to join again.
    listed: bool
    #: Seconds until one that has something alone may count as dead, if its process is not heard of; None where all were heard.
    next_death_s: float | None
    #: Why the queue is paused; None: it is not.
    paused: str | None
    #: Until when, in seconds since the epoch; 0: until it is resumed.
    paused_until: float
    #: None: the queue could not be looked at, which is logged.
    queue: SeenQueue | None


@dataclass(slots=True)
class ConsumerLook:
    """A look for consumers that may not be answered yet."""

    consumers: Sequence[Consumer]
    #: On `clock`, in seconds.
    asked_at: float = field(default_factory=clock.now_s)
    answered: bool = False
    #: None: there is no answer yet, or none came.
    reply: list[Any] | None = None

    def answer(self, reply: list[Any] | None, _: Exception | None) -> None:
        """Note the answer. The next look meets by itself what made this one fail."""
        self.answered, self.reply = True, reply


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A consumer as the server knows it."""

    id: str
    queue: str
    tag: str
    host: str
    pid: int
    priority: int
    #: `interested`, `notified` or `not interested`, when it was last heard of.
    state: str
    since: datetime
    last_heard: datetime
    #: Messages that its connection has claimed from this queue and not settled.
    held: int
    #: It is the one that gets the messages of a queue with a single active consumer.
    active: bool
    #: That of the application (option `release`), and this package's version; empty where they are not told.
    release: str
    version: str


class Consumers:
    """Lists of consumers over one connection."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, *, process: str = "", timeout_s: float = 60.0, release: str | None = None
    ) -> None:
        """Use `commands`.

        Those that join are of `process` and of the application's `release`, and are dead when the process is silent for
        `timeout_s` seconds.
        """
        self._commands = commands
        self._keys = keys
        self._timeout_ms = int(timeout_s * 1000)
        self._process = process
        self._release = release or ""
        self._failures = QueueFailures(commands, logger, "has a list of consumers that cannot be kept")

    def join(self, consumer: Consumer, *, have_ended: HaveEnded | None = None) -> bool:
        """List `consumer`; return whether its queue has rules for its consumers.

        Args:
            consumer: what to list.
            have_ended: wait, `DEAD_WITHIN_S` at most, where the processes of those in its way have ended, as this tells. None: do
                not wait.

        Raises:
            AccessRefused: another consumer has the queue alone, or it wants to and there are others.
            ResourceLocked: the queue belongs to another connection.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        fields: tuple[Argument, ...] = (
            *("tag", consumer.tag, "process", self._process, "host", socket.gethostname(), "pid", os.getpid()),
            *("state", consumer.state(), "timeout", self._timeout_ms, "release", self._release, "version", __version__),
        )
        deadline, looks_again = time.monotonic() + DEAD_WITHIN_S, have_ended is not None
        while True:
            answer, *processes = self._commands.call(
                script("register_consumer"), self._keys.queue(consumer.queue).consumer_keys,
                consumer.id, consumer.priority, int(consumer.exclusive), *fields,
            )  # fmt: skip
            if answer not in REFUSALS:
                return bool(answer == b"restricted")
            waits = bool(processes) and have_ended is not None and have_ended([*map(bytes.decode, processes)])
            if not (waits or looks_again) or time.monotonic() > deadline:
                break
            # Of one that was put away after the refusal nothing can be told, and it is in the way no more.
            looks_again = waits
            if waits:
                time.sleep(TRY_AGAIN_S)
        error = ResourceLocked if answer == b"locked" else AccessRefused
        raise error(f"queue {consumer.queue!r} {REFUSALS[answer]}")

    def check_listed(self, consumers: Sequence[Consumer], life_ms: Callable[[str], int] = lambda _: 0) -> list[Standing]:
        """Tell in which state consumers are, and return how they and their queues stand. Raises as `CommandConnection.call` does.

        `life_ms` is asked for how long the record of a queue is to live, in ms; 0 for a lasting one.
        """
        if not consumers:
            return []
        look = ConsumerLook(consumers)
        look.reply = self._commands.call(script("check_consumers"), *self._look_arguments(consumers, life_ms))
        return self.standings(look)

    def check_listed_nowait(self, consumers: Sequence[Consumer], life_ms: Callable[[str], int]) -> ConsumerLook:
        """Do as `check_listed` with the next call, without waiting; `standings` reads the answer. Raises as `connect` does."""
        look = ConsumerLook(consumers)
        keys, *arguments = self._look_arguments(consumers, life_ms)
        self._commands.send_nowait(script("check_consumers"), keys, *arguments, done=look.answer, buffered=True)
        return look

    def _look_arguments(self, consumers: Sequence[Consumer], life_ms: Callable[[str], int]) -> tuple[Any, ...]:
        keys: list[bytes] = []
        arguments: list[Argument] = []
        for consumer in consumers:
            keys += self._keys.queue(consumer.queue).consumer_keys
            arguments += (consumer.id, consumer.state(), life_ms(consumer.queue))
        return (keys, *arguments)

    def standings(self, look: ConsumerLook) -> list[Standing]:
        """Return what a look has told; a queue that could not be looked at is logged."""
        reply, check = look.reply or [], script("check_consumers")
        for consumer, text in zip(look.consumers, reply[STANDING_VALUES - 1 :: STANDING_VALUES], strict=True):
            if text:
                keys = [*self._keys.queue(consumer.queue).consumer_keys]
                call: tuple[Argument, ...] = ("EVALSHA", check.sha, len(keys), *keys)
                self._failures.contain_text(text.decode(errors="replace"), consumer.queue, call)
        return [
            Standing(
                consumer,
                listed=bool(listed),
                next_death_s=None if death_ms < 0 else death_ms / 1000,
                paused=reason.decode("utf-8", "replace") or None,
                paused_until=int(until) / 1000,
                queue=None if failure else SeenQueue(look.asked_at, count, record_id, bool(empty), bool(unpublished)),
            )
            for consumer, listed, death_ms, reason, until, count, record_id, empty, unpublished, failure in zip(
                look.consumers, *(reply[at::STANDING_VALUES] for at in range(STANDING_VALUES)), strict=True
            )
        ]

    def suspend(self, consumer: Consumer) -> None:
        """Note that a consumer has no credit, so that those of lower priorities get what comes. Does not wait for the reply."""
        self._commands.send_nowait(script("report_no_credit"), self._keys.queue(consumer.queue).consumer_keys, consumer.id)

    def leave(self, queue: str, consumer: str) -> None:
        """Take a consumer off the list; log where the list is damaged. Raises as `CommandConnection.call` does."""
        try:
            self._commands.call(script("deregister_consumer"), self._keys.queue(queue).consumer_keys, consumer)
        except ResponseError as error:
            self._failures.contain(error, queue)

    def list(self, queue: str) -> list[ConsumerRecord]:
        """Return the queue's live consumers, the longest there first. Raises as `CommandConnection.call` does."""
        keys = self._keys.queue(queue)
        call = (script("list_consumers"), [*keys.living, keys.meta, keys.index, keys.message])
        entries: list[Any] = []
        held: Counter[bytes] = Counter()
        first, more, active = 0, 1, b""
        while more:
            more, active, holders, *page = self._commands.call(*call, first, LIST_PAGE)
            held.update(holders)
            entries += page
            first += LIST_PAGE
        return [
            _record(queue, name, stored_number(since), dict(zip(record[::2], record[1::2], strict=True)), held, active)
            for name, since, record in zip(entries[::3], entries[1::3], entries[2::3], strict=True)
        ]


def _record(
    queue: str, name: bytes, since_ms: int, fields: dict[bytes, bytes], held: Counter[bytes], active: bytes
) -> ConsumerRecord:
    def text(field_name: bytes) -> str:
        return fields.get(field_name, b"").decode("utf-8", "replace")

    def number(field_name: bytes) -> int:
        return stored_number(fields.get(field_name))

    return ConsumerRecord(
        id=decode_name(name),
        queue=queue,
        tag=text(b"tag"),
        host=text(b"host"),
        pid=number(b"pid"),
        priority=number(b"priority"),
        state=text(b"state"),
        since=time_of_ms(since_ms),
        last_heard=time_of_ms(number(b"heard")),
        held=held[name.partition(CONSUMER_ID_SEPARATOR.encode())[0]],
        active=name == active,
        release=text(b"release"),
        version=text(b"version"),
    )
