"""Puts messages into queues, each one once, however often its publisher has to retry.

How, and why remembering only the last sequence loses messages: docs/design/0003-idempotent-publish.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery_redis_plus import clock
from celery_redis_plus.broker.arguments.deduplication import read_duplicate
from celery_redis_plus.broker.publishing.publish_scripts import PublishScript
from celery_redis_plus.broker.publishing.replication import Replication
from celery_redis_plus.connection.protocol import pack_call
from celery_redis_plus.errors import MessageTooLarge, NotReplicated, OutcomeUnknown, PublishRefused, QueueNotFound
from celery_redis_plus.keys import STAGED, encode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import BODY_SEPARATOR, LARGE_BODY, MAX_BODY, Outgoing

if TYPE_CHECKING:
    from celery_redis_plus.broker.publishing.attempt import PublishAttempt
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import FanoutKeys, Keys, QueueKeys
    from celery_redis_plus.scripts import Script

#: What the publish script answers for a queue without a record.
NO_QUEUE = b"NOQUEUE"
#: What it answers where the message was prepared by another record than the one that stands: nothing is stored.
REDECLARED = b"REDECLARED"
#: What it answers where the message was routed by other bindings than those that stand: nothing is stored.
REROUTE = b"REROUTE"
#: What it answers for a queue that has limits, which another script heeds.
BOUNDED = b"BOUNDED"
#: What both answer where the queue's events are written and they were given no description.
NEED_METADATA = b"NEED_METADATA"
#: How both begin their answer where another message stands for it already.
DUPLICATE = b"DUPLICATE "
#: What the other script answers where the queue has none any more, and where older messages had to make room.
UNBOUNDED, DROPPED = b"UNBOUNDED", b"DROPPED"
#: The description of a message of which nothing is known.
NO_DESCRIPTION = b"\t" * 10
#: The last argument where none was made.
UNDESCRIBED = (b"",)
#: The answer to a broadcast without subscribers.
NOBODY = b"NOBODY"
#: Tells the script of broadcasts that such a one is an error.
MANDATORY = 2
#: A staged body whose publisher died vanishes after this time. Milliseconds.
STAGED_TTL_MS = 300_000


class Target(NamedTuple):
    """Where broadcasts to one fanout exchange go."""

    keys: FanoutKeys
    #: Entries the stream keeps, about.
    maxlen: int
    #: Milliseconds for which it keeps them; 0: without a limit.
    max_age_ms: int
    #: Whether a broadcast without subscribers is only counted.
    ignores_unroutable: bool = False


class Bounded(Protocol):
    """What publishes into queues, or fanout exchanges, that have limits: `broker/flow_control/controller.py`."""

    #: Names of those that have limits, as far as is known.
    queues: Container[str]

    def put(self, queue: str, outgoing: Outgoing, send: Callable[..., Any]) -> bytes | None:
        """Publish by `send(*more)`, the script's further arguments; return its answer, None where the queue has no limits."""


class Publisher:
    """Publishes over one connection."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        *,
        dedup_window_s: float,
        on_missing: Callable[[str], bool],
        replication: Replication | None = None,
        bounded: Callable[[], Bounded] | None = None,
        bounded_exchanges: Callable[[], Bounded] | None = None,
    ) -> None:
        """Publish over `commands`.

        Args:
            commands: the connection; its lock orders the messages.
            keys: spells the keys.
            dedup_window_s: how long the server remembers a producer, in seconds.
            on_missing: called with a queue's name when the queue has no record; returns whether it has one now.
            replication: what the replicas must confirm; the connection's timeout has to leave time for it.
            bounded: returns what publishes into queues that have limits; called at the first, which is refused without it.
            bounded_exchanges: the same for fanout exchanges.
        """
        self._commands = commands
        self._keys = keys
        self._window_s = dedup_window_s
        self._window = b"%d" % int(dedup_window_s * 1000)
        self._on_missing = on_missing
        self._replication = replication = replication or Replication()
        #: Whether a publish has to be confirmed by replicas: see `check_replicas`.
        self.waits_for_replicas = replication.replicas > 0
        #: How many replicas confirmed the last call's message, which is stored; None: enough, or it is not stored.
        self._confirmed: int | None = None
        self._make_bounded, self._make_bounded_exchanges = bounded or _refuse_bounded, bounded_exchanges or _refuse_bounded
        self._bounded: Bounded | None = None
        self._bounded_exchanges: Bounded | None = None
        #: Queues whose events are written, as far as this publisher knows.
        self.event_logged: set[str] = set()
        self._publish_ordinary = PublishScript("publish_ordinary", keys, lambda of: of.publish_ordinary)
        self._publish = PublishScript("publish", keys, lambda of: of.publish)
        self._publish_bounded = PublishScript(
            "publish_bounded", keys, lambda of: (*of.state_keys, of.waiting_publishers, *of.living)
        )
        self._publish_dead = PublishScript("publish_dead", keys, lambda of: of.state_keys)

    def to_queue(
        self, queue: str, outgoing: Outgoing, attempt: PublishAttempt, on_missing: Callable[[str], bool] | None = None
    ) -> bool | None:  # fmt: skip
        """Put a message into `queue`; return False where the queue is gone and must not come back.

        None: the bindings that it was routed by have changed; nothing is stored. `on_missing` goes before the one that the
        publisher was made with.

        Raises:
            MessageTooLarge: the body is over 512 MB.
            OutcomeUnknown: a retry that comes after the server has forgotten the first try.
            PublishRefused: the queue has limits, and does not take the message.
            redis.exceptions.RedisError: as `error_translation.translate` names it; `attempt` remembers what the retry needs.
        """
        if queue in attempt.done:
            return True
        made = False
        while (reply := self._put(queue, outgoing, attempt)) in {NO_QUEUE, REDECLARED, REROUTE}:
            if reply == REROUTE:
                return None
            if reply == NO_QUEUE:
                if made:
                    raise QueueNotFound(f"queue {queue!r} vanished while a message was published to it; nothing was stored")
                if not (on_missing or self._on_missing)(queue):
                    attempt.confirm(queue)
                    return False
                made = True
            outgoing = _prepared_again(outgoing)
        attempt.done = (*attempt.done, queue)
        if outgoing.deduplication is not None and reply.startswith(DUPLICATE):
            attempt.duplicate_of, attempt.duplicate_task = read_duplicate(reply.removeprefix(DUPLICATE))
            reply = b""
        if attempt.tags is not None:
            attempt.tags[queue] = reply.decode()
        return True

    def is_bounded(self, queue: str) -> bool:
        """Return whether a queue has limits, as far as this publisher knows."""
        return self._bounded is not None and queue in self._bounded.queues

    def to_dead_letters(self, queue: str, outgoing: Outgoing, attempt: PublishAttempt, reason: str, keep: int) -> None:
        """Put a message without a recipient straight among the dead letters of `queue`, which keeps `keep` at most.

        Raises as `to_queue` does; a queue without a record gets one.
        """
        more = (reason.encode(), b"%d" % keep)
        while self._send(queue, outgoing, attempt, self._publish_dead, more) == NO_QUEUE:
            if not self._on_missing(queue):
                raise QueueNotFound(f"queue {queue!r}, for messages that no queue takes, was transient and is gone")

    def _put(self, queue: str, outgoing: Outgoing, attempt: PublishAttempt) -> bytes:
        bounded = self._bounded
        if bounded is None or queue not in bounded.queues:
            is_ordinary = outgoing.ordinary and queue not in attempt.pending and queue not in self.event_logged
            reply: bytes = self._send(queue, outgoing, attempt, self._publish_ordinary if is_ordinary else self._publish)
            if reply != BOUNDED:
                return reply
        if bounded is None:
            bounded = self._bounded = self._make_bounded()
        managed = bounded.put(queue, outgoing, lambda *more: self._send(queue, outgoing, attempt, self._publish_bounded, more))
        return self._put(queue, outgoing, attempt) if managed is None else managed

    def _send(
        self, queue: str, outgoing: Outgoing, attempt: PublishAttempt, publish: PublishScript, more: tuple[bytes, ...] = ()
    ) -> Any:  # fmt: skip
        """Run a script that publishes, with `more` than the common arguments."""
        last: tuple[bytes, ...] = (description_of(outgoing),) if queue in self.event_logged else UNDESCRIBED
        if outgoing.deduplication is not None and publish is not self._publish_dead:
            last = (*last, outgoing.deduplication)
        with self._commands.exclusive():
            is_retry = queue in attempt.pending
            producer, number, retry = self._number_of_retry(queue, attempt) if is_retry else (*self._commands.next_number(), 0)
            keys = publish.keys(queue, producer)
            if outgoing.routed_by is not None:
                keys = (*keys, outgoing.routed_by[0])
            if len(outgoing.body) > LARGE_BODY:
                check_size(outgoing)
                keys, payload = (*keys, self._stage(queue, outgoing, producer, number)), outgoing.envelope
            else:
                payload = b"%b%b%b" % (outgoing.envelope, BODY_SEPARATOR, outgoing.body)
            arguments: tuple[Argument, ...]
            if publish is self._publish_ordinary:
                arguments = (payload, outgoing.rank, outgoing.queue_id, number, self._window)
                if outgoing.routed_by is not None:
                    arguments = (*arguments, outgoing.routed_by[1])
            else:
                rank = b"%d" % outgoing.rank if publish is self._publish_dead else _rank(outgoing)
                arguments = (payload, rank, outgoing.eta or 0, number, retry, self._window, outgoing.life, *more, *last)
            packed = pack_call(publish.script.sha, keys, arguments)
            run = self._run_and_wait if self._replication.replicas else self._commands.call_packed
            try:
                reply = run(publish.script, packed)
            except BaseException:
                self._remember(queue, producer, number, attempt)
                raise
            if self._replication.replicas and _is_stored(reply):
                self._compare(queue, producer, number, attempt)
        if reply == NEED_METADATA:
            self.event_logged.add(queue)
            return self._send(queue, outgoing, attempt, self._publish if publish is self._publish_ordinary else publish, more)
        return reply

    def _compare(self, target: str, producer: bytes, number: int, attempt: PublishAttempt) -> None:
        """Note whether enough replicas have the message of the last call."""
        if self._confirmed is not None:
            attempt.stored(target, producer, number, self._confirmed)
        else:
            attempt.end_doubt(target)

    def _remember(self, target: str, producer: bytes, number: int, attempt: PublishAttempt) -> None:
        """Note what a retry has to know of a try that failed."""
        if self._confirmed is not None:
            attempt.stored(target, producer, number, self._confirmed)
        elif self._commands.outcome_unknown:
            # A retry that is refused leaves the doubt about the first try; so does one that is lost.
            attempt.mark_unknown(target, producer, number)

    def _run_and_wait(self, script: Script, packed: bytes) -> Any:
        """Run a publishing script and, in the same write, WAIT: for all that this connection has written up to then."""
        commands, wanted = self._commands, self._replication.replicas
        wait = ("WAIT", wanted, self._replication.timeout_ms(commands))
        outcome: list[tuple[Any, Exception | None]] = []
        self._confirmed = None
        confirmed = 0
        try:
            commands.send_packed_nowait(script, packed, done=lambda reply, error: outcome.append((reply, error)), buffered=True)
            confirmed = int(commands.command(*wait))
            while not outcome:
                # The server's scripts had been flushed, and this one was sent again, behind that WAIT.
                confirmed = int(commands.command(*wait))
            self._replication.note(commands, confirmed)
        finally:
            reply, error = outcome[0] if outcome else (NO_QUEUE, None)
            if error is None and _is_stored(reply) and confirmed < wanted:
                self._confirmed = confirmed
        if error is not None:
            raise error
        return reply

    def check_replicas(self, attempt: PublishAttempt) -> None:
        """Raise NotReplicated where a target of this attempt has the message on too few replicas."""
        wanted, waited_s = self._replication.replicas, self._replication.waited_s
        confirmed = attempt.short_of_replicas()
        if confirmed is None:
            return
        raise NotReplicated(
            f"the message is stored, but only {confirmed} of {wanted} replicas have it after {waited_s:g} s (options "
            "wait_replicas, wait_replicas_timeout); it was not taken back, and a second publish would be a second message",
            confirmed=confirmed,
            wanted=wanted,
        )

    def count(self, queue: str, counter: str, *, existing: bool = False) -> None:
        """Move a counter of the queue's record on; with `existing`, only where there is one.

        Raises as `CommandConnection.call` does.
        """
        self._commands.call(script("increment_counters"), [self._keys.queue(queue).meta], counter, int(existing))

    def to_stream(
        self,
        target: Target,
        record: bytes,
        outgoing: Outgoing,
        routing_key: str,
        attempt: PublishAttempt,
        *,
        mandatory: bool = False,
    ) -> bool | None:
        """Append a broadcast to a fanout exchange's stream; return False without subscribers, if it has to reach one.

        Then the caller keeps it elsewhere, and confirms the attempt; a `mandatory` one is not appended. Returns None where the
        exchange's record is another one than `record`; nothing is appended.
        Raises as `to_queue` does.
        """
        exchange = target.keys.exchange
        if exchange in attempt.done:
            return True
        size = len(outgoing.envelope) + len(BODY_SEPARATOR) + len(outgoing.body)
        if size > MAX_BODY:
            raise MessageTooLarge(f"broadcast of {size} bytes to {exchange!r}: at most {MAX_BODY} bytes")
        bounded, reply = self._bounded_exchanges, BOUNDED
        nobody = MANDATORY if mandatory else int(target.ignores_unroutable)
        if bounded is None or exchange not in bounded.queues:
            reply = self._append(target, record, outgoing, routing_key, nobody, attempt)
        while reply == BOUNDED:
            bounded = self._bounded_exchanges = bounded or self._make_bounded_exchanges()
            append = partial(self._append, target, record, outgoing, routing_key, nobody, attempt)
            reply = bounded.put(exchange, outgoing, append) or append()
        if reply == REDECLARED:
            return None
        if reply == NOBODY:
            return False
        attempt.confirm(exchange)
        return True

    def _append(
        self,
        target: Target,
        record: bytes,
        outgoing: Outgoing,
        routing_key: str,
        nobody: int,
        attempt: PublishAttempt,
        *limits: bytes,
    ) -> Any:
        """Append to a stream; with `limits`, the arguments for those, by the script that heeds them."""
        to_stream = script("publish_fanout_bounded" if limits else "publish_fanout")
        keys, exchange = target.keys, target.keys.exchange
        payload = b"%b%b%b" % (outgoing.envelope, BODY_SEPARATOR, outgoing.body)
        with self._commands.exclusive():
            is_retry = exchange in attempt.pending
            producer, number, retry = self._number_of_retry(exchange, attempt) if is_retry else (*self._commands.next_number(), 0)
            arguments = (
                payload, routing_key, b"%b.%d" % (producer, number), target.maxlen, number, retry, self._window,
                target.max_age_ms, nobody, *limits, encode_name(exchange), record,
            )  # fmt: skip
            script_keys: tuple[bytes, ...] = (keys.stream, keys.meta, keys.producer + producer, keys.cursors)
            if limits:
                script_keys = (*script_keys, keys.subscribers, keys.records, keys.waiting_publishers)
            script_keys = (*script_keys, self._keys.exchanges)
            # What may go nowhere may be lost by a failover as well.
            waits = self.waits_for_replicas and not target.ignores_unroutable
            self._confirmed = None
            run = self._run_and_wait if waits else self._commands.call_packed
            try:
                reply = run(to_stream, pack_call(to_stream.sha, script_keys, arguments))
            except BaseException:
                self._remember(exchange, producer, number, attempt)
                raise
            if waits and _is_stored(reply):
                self._compare(exchange, producer, number, attempt)
        return reply

    def _number_of_retry(self, target: str, attempt: PublishAttempt) -> tuple[bytes, int, int]:
        """Return the producer and the number that an earlier try went out under, and 1 where its outcome is unknown."""
        pending = attempt.pending[target]
        age_s = clock.now_s() - pending.born
        if age_s > self._window_s:
            raise OutcomeUnknown(
                f"publishing to {target!r} was tried {age_s:.0f} s ago without an answer; the server remembers "
                f"{self._window_s:.0f} s (option publish_dedup_window): the message may or may not be there"
            )
        # A retry fences the producer, whose connection is gone; that of a message that is stored may live and go on.
        return pending.producer, pending.number, int(pending.replicas is None)

    def _stage(self, queue: str, outgoing: Outgoing, producer: bytes, number: int) -> bytes:
        return stage(self._commands, self._keys.queue(queue), producer + b"." + str(number).encode(), outgoing.body)


def _refuse_bounded() -> Bounded:
    raise PublishRefused("a queue or an exchange with limits, which this publisher was not made for; nothing is stored")


def stage(commands: CommandConnection, keys: QueueKeys, name: bytes, body: bytes) -> bytes:
    """Put a large body beside the scripts under a `name` of its own; return its key, for the script that takes it over.

    The key expires by itself if we die before, also where the connection ends in the midst of the body. Raises as
    `CommandConnection.ask`.
    """
    key = keys.message + STAGED + name
    commands.ask([("HSET", key, "body", b""), ("PEXPIRE", key, STAGED_TTL_MS), ("HSET", key, "body", body)])
    return key


def _prepared_again(outgoing: Outgoing) -> Outgoing:
    """Return a message prepared by the record that its queue has now."""
    if outgoing.prepare_again is None:
        return outgoing
    again = outgoing.prepare_again()
    again.routed_by = outgoing.routed_by
    return again


def _is_stored(reply: Any) -> bool:
    """Return whether a publish script's answer says that the message is in the queue."""
    if isinstance(reply, list):
        return bool(reply[0] == DROPPED)
    return reply not in {NO_QUEUE, REDECLARED, REROUTE, BOUNDED, NEED_METADATA, UNBOUNDED} and not reply.startswith(DUPLICATE)


def check_size(outgoing: Outgoing) -> None:
    """Refuse what the server would refuse only after it was sent.

    Raises:
        MessageTooLarge: the body is over 512 MB.
    """
    if len(outgoing.body) > MAX_BODY:
        raise MessageTooLarge(f"body of {len(outgoing.body)} bytes: at most {MAX_BODY} bytes (Redis' limit of a string)")


def _rank(outgoing: Outgoing) -> bytes:
    """Return the rank of a message, and behind it what it was prepared and routed by, as `lua/publish.lua` has it."""
    if outgoing.routed_by is not None:
        return b"%d %b %d" % (outgoing.rank, outgoing.queue_id, outgoing.routed_by[1])
    return b"%d %b" % (outgoing.rank, outgoing.queue_id) if outgoing.queue_id else b"%d" % outgoing.rank


def description_of(outgoing: Outgoing) -> bytes:
    """Return what the event `published` says of a message."""
    return NO_DESCRIPTION if outgoing.describe is None else outgoing.describe().encode("utf-8", "surrogateescape")
