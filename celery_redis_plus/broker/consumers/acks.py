"""Settles messages: ack, reject, requeue, release. Posted without waiting; a lost reply sends the settlement again."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.failures import log_deaths, log_pause, read_deaths
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.events import pack_text
from celery_redis_plus.scripts import Script, script

if TYPE_CHECKING:
    from _thread import RLock

    from celery_redis_plus.broker.consumers.last_error import Failure
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Most messages one script call settles.
SETTLED_A_CALL = 250
#: Seconds for which a settlement waits for its connection, where other threads wait for replies, before it is deferred.
LOCK_WAIT_S = 0.05
#: The same for an ack that has to leave before the work begins: the work waits for it.
BEFORE_WORK_WAIT_S = 10.0
#: Seconds for which the ack of a message whose work has begun in another process may wait for others.
EARLY_ACK_DELAY_S = 0.01
#: Seconds of work whose acks may wait for each other while messages are delivered: a crash in the next delivery repeats it.
QUICK_WORK_S = 0.001
#: Settlement -> what the requeue script calls it.
REQUEUES = {Settlement.REQUEUE: "asked", Settlement.FAIL: "failed", Settlement.TIME_OUT: "timed_out"}


class NotAckedError(Exception):
    """The ack of a message could not leave before the work on it, which may not begin: the message goes back."""


class _Held:
    """Holds a lock; yields whether it came within `LOCK_WAIT_S`. Most acks make one; a generator costs three times as much."""

    __slots__ = ("_is_free", "_lock")

    def __init__(self, lock: RLock) -> None:
        self._lock = lock

    def __enter__(self) -> bool:
        self._is_free = self._lock.acquire(timeout=LOCK_WAIT_S)
        return self._is_free

    def __exit__(self, *error: object) -> None:
        if self._is_free:
            self._lock.release()


class Acknowledger:
    """Settles over one connection."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        unacked_messages: UnackedMessages,
        *,
        dead_letter_max: int,
        delivery_limit: int | None,
        on_batched: Callable[[Acknowledger], None] = lambda _: None,
    ) -> None:
        """Settle over `commands`.

        Args:
            commands: the connection.
            keys: spells the keys.
            unacked_messages: those of this process.
            dead_letter_max: how many dead letters a queue keeps.
            delivery_limit: failed deliveries after which a message dies in queues without a limit of their own; None is never.
            on_batched: called with this, from any thread, when acks are gathered and no flush is scheduled: it schedules one.
        """
        self._commands = commands
        self._keys = keys
        self._unacked_messages = unacked_messages
        self._dead_letter_max = dead_letter_max
        self._delivery_limit = -1 if delivery_limit is None else delivery_limit
        #: Acks that wait for `flush`; from any thread.
        self._batched: deque[UnackedMessage] = deque()
        #: The last refusal of the server that was logged.
        self._refusal = ""
        #: When they have to leave, on `clock`, in seconds.
        self._due_at = math.inf
        #: When the ack that was batched last has or had to leave, on `clock`, in seconds.
        self.last_due_at = 0.0
        #: When the delivery under way began, on `clock`, in seconds; 0 between deliveries.
        self._delivered_at = 0.0
        self._on_batched = on_batched
        #: Whether `flush_due` will be called where the loop does not send the acks: `on_batched` sees to that.
        self.flush_scheduled = False
        self._ack = script("ack")
        self._begin = script("mark_begun")
        self._requeue = script("requeue")
        self._release = script("release")
        self._reject = script("reject")
        self._wake = script("notify_if_ready")
        self._note_error = script("record_error")
        self._tell_failed = script("log_failed")

    def post(self, unacked: UnackedMessage, settlement: Settlement) -> None:
        """Send a settlement without waiting for the reply. Never raises.

        A settlement that the connection loses, or cannot take within `LOCK_WAIT_S`, is deferred: the maintenance thread sends it
        over a connection of its own.
        """
        with _Held(self._commands.lock) as is_free:
            self._send([[unacked]], settlement, is_free=is_free)

    def ack_before_work(self, unacked: UnackedMessage) -> None:
        """Have an ack leave this process before the work on its message begins.

        That of a message without limits and events is two commands, as in a claim: a fifth of a script's time.

        Raises:
            NotAckedError: the connection is gone, or was not free in time; the message goes back.
        """
        commands, messages, keys = self._commands, self._unacked_messages, self._keys.queue(unacked.queue)

        def answered(replies: list[Any]) -> None:
            unlinked, removed = replies
            if removed == 1 and not isinstance(unlinked, Exception):
                messages.discard(unacked)
            else:
                # It stands elsewhere by now, or is still there.
                messages.defer(unacked, Settlement.ACK)

        # Not by `_Held`: the work waits for longer, rather than begin unacked.
        is_free = commands.lock.acquire(timeout=BEFORE_WORK_WAIT_S)
        try:
            if not (is_free and commands.connected):
                messages.defer(unacked, Settlement.RELEASE_SEEN)
                raise NotAckedError(unacked.tag)
            if unacked.is_plain and unacked.queue not in messages.limited:
                tag = unacked.tag
                commands.commands_nowait([("UNLINK", keys.message + tag.encode()), ("ZREM", keys.index, tag)], answered)
            else:
                self._post([unacked], Settlement.ACK, buffered=False)
        except (RedisError, OSError) as error:
            # It may have left, or a part of it: the work begins, and the ack is sent again, since `answered` has been told. The
            # session's owner meets the failure with its next call.
            logger.debug("acking a message before its work: %s", error)
        finally:
            if is_free:
                commands.lock.release()

    def begin(self, unacked: UnackedMessage) -> None:
        """Tell the server that the work on a message begins, where a delivery of it failed before. Never raises.

        The call has left this process when this returns, and nothing waits for the reply. Where the connection is gone, or is not
        free in time, the server does not hear of it, and does not count the loss of this delivery.
        """
        unacked.started = True
        if unacked.begun or not unacked.failed_before:
            return
        unacked.begun = True
        self._tell(self._begin, [self._keys.queue(unacked.queue).message], unacked.tag, unacked.claim)

    def tell_failed(self, queue: str, tag: str, reason: str, failure: Failure | None) -> None:
        """Have the events tell that a task failed whose message was acked early. Never raises, and waits for no reply."""
        # Its ack comes first.
        self.flush()
        error = "" if failure is None else pack_text(failure.text)
        self._tell(self._tell_failed, [self._keys.queue(queue).meta], tag, pack_text(reason), error)

    def _tell(self, told: Script, keys: Sequence[bytes], *arguments: Argument) -> None:
        """Send a script that nothing depends on, unless the connection is gone, or not free in time."""
        with _Held(self._commands.lock) as is_free:
            if not is_free:
                logger.debug("%s of message %s is not sent: the connection is busy", told.name, arguments[0])
                return
            try:
                if self._commands.connected:
                    self._commands.send_nowait(told, keys, *arguments)
            except (RedisError, OSError) as error:
                # The session's owner meets it with its next call.
                logger.debug("%s of message %s is not sent: %s", told.name, arguments[0], error)

    def batch_ack(self, unacked: UnackedMessage) -> None:
        """Keep an ack for `flush` or `flush_due`: one script call for several."""
        self._batched.append(unacked)
        # After it: a flush in between sends it, or leaves it to the next one. The work that a pool has ended may have been long.
        due_at = clock.now_s() + EARLY_ACK_DELAY_S if unacked.acked_early else self._delivered_at + QUICK_WORK_S
        self._due_at = min(self._due_at, due_at)
        self.last_due_at = due_at
        if not self.flush_scheduled:
            self._on_batched(self)

    @property
    def has_batched(self) -> bool:
        """Whether acks wait for `flush`."""
        return bool(self._batched)

    def flush_due(self) -> None:
        """Send the gathered acks if one of them has to leave now. May be called from any thread."""
        if self._batched and self._due_at <= clock.now_s():
            self.flush()

    def begin_delivery(self) -> None:
        """Send the gathered acks that have to leave before the next delivery, which may end the process."""
        self._delivered_at = clock.now_s()
        if self._batched and self._due_at <= self._delivered_at:
            self.flush()

    def end_delivery(self) -> None:
        """Note that what is acked from now on was not worked on within a delivery."""
        self._delivered_at = 0.0

    def drop_batched(self) -> None:
        """Drop the acks that were gathered, in a forked child: the parent sends them."""
        self._batched.clear()

    def flush(self, *, buffered: bool = False) -> None:
        """Send the gathered acks, with `buffered` in the connection's next write. Never raises, as `post`."""
        if not self._batched:
            return
        # Before they are taken: a thread that closes the connection meanwhile waits for them, since it sees none any more.
        with _Held(self._commands.lock) as is_free:
            self._send_acks(self._take_batched(), is_free=is_free, buffered=buffered)

    def take_for_claim(self, queues: Sequence[str]) -> list[UnackedMessage]:
        """Take the batched acks that a claim of `queues` carries, for `settle_claimed`; send the others with its write.

        It carries those of messages without limits and events: their ack is two commands, and wakes no consumer.
        """
        if not self._batched:
            return []
        taken = self._take_batched()
        limited = self._unacked_messages.limited
        carried = [unacked for unacked in taken if unacked.queue in queues and unacked.queue not in limited and unacked.is_plain][
            :SETTLED_A_CALL
        ]
        if len(carried) < len(taken):
            going = set(carried)
            with _Held(self._commands.lock) as is_free:
                self._send_acks([unacked for unacked in taken if unacked not in going], is_free=is_free, buffered=True)
        return carried

    def settle_claimed(self, acks: Iterable[UnackedMessage], again: Sequence[str] | None) -> None:
        """Note that the server has removed messages whose acks went with a claim; deferred are those of the queues `again`.

        `again` None: it has not answered, and all are deferred. From any thread.
        """
        for unacked in acks:
            if again is None or unacked.queue in again:
                self._unacked_messages.defer(unacked, Settlement.ACK)
            else:
                self._unacked_messages.discard(unacked)

    def _take_batched(self) -> list[UnackedMessage]:
        self._due_at = math.inf
        taken = []
        try:
            while self._batched:
                taken.append(self._batched.popleft())
        except IndexError:
            # Another thread took the last one.
            pass
        return taken

    def _send_acks(self, acks: list[UnackedMessage], *, is_free: bool, buffered: bool) -> None:
        if len(acks) == 1:
            # As for most messages: the rest of this costs as much as the call itself.
            self._send([acks], Settlement.ACK, is_free=is_free, buffered=buffered)
            return
        batches = [
            messages[at : at + SETTLED_A_CALL]
            for messages in by_queue(acks).values()
            for at in range(0, len(messages), SETTLED_A_CALL)
        ]
        self._send(batches, Settlement.ACK, is_free=is_free, buffered=buffered)

    def _send(
        self, batches: Iterable[list[UnackedMessage]], settlement: Settlement, *, is_free: bool, buffered: bool = False
    ) -> None:  # fmt: skip
        """Post a call for each batch, of messages of one queue, inside `_Held`; defer what it does not take."""
        for messages in batches:
            # Asked under the lock: a settlement never opens a lost connection anew, because its reply would not be read.
            if is_free and self._commands.connected:
                self._post(messages, settlement, buffered=buffered)
            else:
                self._defer([messages], settlement)

    def _defer(self, batches: Iterable[Iterable[UnackedMessage]], settlement: Settlement) -> None:
        for messages in batches:
            for unacked in messages:
                self._unacked_messages.defer(unacked, settlement)

    def _post(self, messages: list[UnackedMessage], settlement: Settlement, *, buffered: bool) -> None:
        commands = self._commands
        keys, arguments = self._call(messages, settlement)

        def done(reply: Any, error: Exception | None) -> None:
            if error is not None:
                self._log_refusal(error, settlement, messages[0].queue)
                self._defer([messages], settlement)
                return
            if settlement in REQUEUES:
                self._log_requeue(messages[0].queue, reply)
            for unacked in messages:
                self._unacked_messages.discard(unacked)

        if errors := _errors(messages, settlement):
            # With which exceptions the work ended: before the settlement, and in its write.
            try:
                commands.send_nowait(self._note_error, [self._keys.queue(messages[0].queue).message], *errors, buffered=True)
            except (RedisError, OSError) as error:
                done(None, error)
                return
        try:
            commands.send_nowait(self._script(settlement), keys, *arguments, done=done, buffered=buffered)
            if messages[0].queue in self._unacked_messages.limited:
                commands.send_nowait(self._wake, self._wake_keys(messages[0].queue), buffered=buffered)
        except (RedisError, OSError) as error:
            # `done` has been told of the failure, and the session's owner meets it with its next call.
            logger.debug("settling %d message(s): %s", len(messages), error)

    def _log_refusal(self, error: Exception, settlement: Settlement, queue: str) -> None:
        if isinstance(error, ResponseError) and str(error) != self._refusal:
            self._refusal = str(error)
            logger.warning(
                "the server refuses to %s messages of queue %r: %s", settlement.value, queue, error, extra={"queue": queue}
            )

    def settle_or_defer(self, messages: Sequence[UnackedMessage], settlement: Settlement) -> None:
        """Settle messages and wait for the replies.

        Raises as `CommandConnection.call` does; maintenance then settles them. It also does where the keys of their queue do not
        allow it, and nothing is raised.
        """
        left = by_queue(messages)
        try:
            for queue, batch in list(left.items()):
                try:
                    self.settle(batch, settlement)
                except ResponseError as error:
                    if not concerns_keys(error):
                        raise
                    self._log_refusal(error, settlement, queue)
                    continue
                del left[queue]
        finally:
            self._defer(left.values(), settlement)

    def settle(self, messages: Iterable[UnackedMessage], settlement: Settlement) -> None:
        """Settle messages and wait for the replies. Raises as `CommandConnection.call` does; the messages then stay unacked."""
        for batch in by_queue(messages).values():
            for at in range(0, len(batch), SETTLED_A_CALL):
                part = batch[at : at + SETTLED_A_CALL]
                if errors := _errors(part, settlement):
                    self._commands.call(self._note_error, [self._keys.queue(part[0].queue).message], *errors)
                self._settle_now(part, settlement)
                for unacked in part:
                    self._unacked_messages.discard(unacked)
            if batch[0].queue in self._unacked_messages.limited:
                self._commands.call(self._wake, self._wake_keys(batch[0].queue))

    def time_out(self, messages: Sequence[UnackedMessage]) -> None:
        """Put messages of one queue back, and wait for the reply; they stay unacked here.

        It is a failed delivery of those whose work has begun. A late ack still counts, as of messages that others have: the work
        is done. Raises as `CommandConnection.call` does.
        """
        queue = messages[0].queue
        begun = [unacked for unacked in messages if unacked.started]
        # Before the call: this process may claim them again before it reads the reply.
        self._unacked_messages.mark_timed_out(begun)
        self._return_held(begun, Settlement.TIME_OUT)
        self._return_held([unacked for unacked in messages if not unacked.started], Settlement.RELEASE_SEEN)
        if queue in self._unacked_messages.limited:
            self._commands.call(self._wake, self._wake_keys(queue))

    def _return_held(self, messages: Sequence[UnackedMessage], settlement: Settlement) -> None:
        """Put messages of one queue back that stay unacked here."""
        if not messages:
            return
        claims = [unacked.claim for unacked in messages]
        self._settle_now(messages, settlement)
        for unacked, claim in zip(messages, claims, strict=True):
            self._unacked_messages.mark_lease_lost(unacked.tag, claim)

    def _settle_now(self, messages: Sequence[UnackedMessage], settlement: Settlement) -> None:
        """Settle messages of one queue, as many as a call takes, and wait for the reply."""
        keys, arguments = self._call(messages, settlement)
        reply = self._commands.call(self._script(settlement), keys, *arguments)
        if settlement in REQUEUES:
            self._log_requeue(messages[0].queue, reply)

    def _log_requeue(self, queue: str, reply: Any) -> None:
        _, died, _, deaths, paused = reply
        if died:
            log_deaths(queue, died, list(read_deaths(deaths)))
        if paused and queue not in self._unacked_messages.pauses_logged:
            self._unacked_messages.pauses_logged.add(queue)
            log_pause(queue, paused[0].decode(), paused[1])

    def _wake_keys(self, queue: str) -> list[bytes]:
        keys = self._keys.queue(queue)
        return [keys.ready, keys.wakeup, keys.meta]

    def _script(self, settlement: Settlement) -> Script:
        if settlement is Settlement.ACK:
            return self._ack
        if settlement is Settlement.REJECT:
            return self._reject
        return self._requeue if settlement in REQUEUES else self._release

    def _call(self, messages: Sequence[UnackedMessage], settlement: Settlement) -> tuple[Sequence[bytes], list[Argument]]:
        keys = self._keys.queue(messages[0].queue)
        if settlement is Settlement.ACK:
            return keys.ack, [_with_outcome(unacked) for unacked in messages]
        if settlement is Settlement.REJECT:
            pairs = [part for unacked in messages for part in (unacked.tag, unacked.claim)]
            return keys.state_keys, ["rejected", self._dead_letter_max, *pairs]
        requeues = settlement in REQUEUES
        no_wait = -1 if requeues else 0
        waits = [no_wait if unacked.retry_delay_ms is None else unacked.retry_delay_ms for unacked in messages]
        triples = [part for unacked, wait in zip(messages, waits, strict=True) for part in (unacked.tag, unacked.claim, wait)]
        if requeues:
            return keys.state_keys, [self._delivery_limit, self._dead_letter_max, REQUEUES[settlement], *triples]
        return keys.release, [int(settlement is not Settlement.RELEASE_UNSEEN), *triples]


def by_queue(messages: Iterable[UnackedMessage]) -> dict[str, list[UnackedMessage]]:
    """Return messages by their queues."""
    queues: dict[str, list[UnackedMessage]] = {}
    for unacked in messages:
        queues.setdefault(unacked.queue, []).append(unacked)
    return queues


def _with_outcome(unacked: UnackedMessage) -> str:
    """Return what the ack script takes for a message; only the events of a logged one tell how the work ended."""
    outcome = "early\t" if unacked.acked_early and unacked.is_logged else unacked.outcome
    return f"{unacked.tag}\t{outcome}" if outcome else unacked.tag


def _errors(messages: Sequence[UnackedMessage], settlement: Settlement) -> list[Argument]:
    """Return what the script takes that notes exceptions: of messages that stay on the server after a failure."""
    errors: list[Argument] = []
    if settlement is Settlement.REJECT or settlement in REQUEUES:
        for unacked in messages:
            if unacked.error:
                errors += (unacked.tag, unacked.claim, unacked.error)
    return errors
