"""When a connection claims, for which of its channels, how much, and whether it waits for the messages."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED, MAX_QUEUES, Batch
from celery_redis_plus.consumer.queue_order import IDLE_QUEUES
from celery_redis_plus.consumer.restricted_queues import FetchResult

if TYPE_CHECKING:
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.hub_registration import HubRegistration
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers
    from celery_redis_plus.consumer.restricted_queues import FetchRequest, RestrictedQueues

#: Most messages of a claim, and in the buffer of a channel without a prefetch limit, where the options say nothing.
UNLIMITED = min(100, MAX_CLAIMED)
#: After so many messages (an empty claim counts as one) the next claim of a connection asks as well whether there are messages
#: for its other channels. That costs a twentieth of a claim.
CHECK_EVERY = 4
#: Seconds for which a claim waits for more credit while most of the prefetch is being worked on.
CREDIT_WAIT_S = 0.002


@dataclass(slots=True, eq=False)
class PendingClaim:
    """A claim that was sent and whose messages were not taken yet."""

    consumers: QueueConsumers
    #: When it was sent, on `clock`, in seconds.
    asked_at: float
    #: How many messages it may bring.
    credit: int
    #: The queues that it asks.
    names: Sequence[str] = ()
    #: The reply, or the error.
    answer: tuple[Any, Exception | None] | None = None


class Fetcher:
    """The claims of one connection's channels. For the loop's thread."""

    def __init__(
        self,
        session: ConsumerSession,
        restricted_queues: RestrictedQueues,
        consumers: list[QueueConsumers],
        hub: HubRegistration,
    ) -> None:
        """Claim for `consumers`, which the caller keeps up to date, as the options and the loop of `hub` let them."""
        options = session.options
        self._session = session
        self._restricted_queues = restricted_queues
        self._consumers = consumers
        self._hub = hub
        #: The most messages that a claim takes.
        self.batch = options.fetch_batch_size or UNLIMITED
        #: Whether claims are made while claimed messages wait to be delivered.
        self._overfetches = options.overfetch_factor > 1
        self._interval_s = options.min_fetch_interval
        #: Until when no claim may be made, on the monotonic clock, in seconds.
        self._delayed_until = 0.0
        #: Whether work goes on in other threads or processes, so that the loop is never kept from its ticks by it.
        self.pool_is_concurrent = False
        #: Until when a claim waits for more credit; 0: it does not.
        self._claim_at = 0.0
        #: The claim that is on its way.
        self.pending: PendingClaim | None = None
        #: How many claims were made.
        self.claims = 0
        #: The place of the channel that claims next.
        self._next = 0
        #: Messages that claims have brought since the other channels' queues were checked.
        self._brought = 0
        #: Queues that were checked, and some of which have messages.
        self._found: Sequence[str] = ()
        #: When it was asked whether there are messages, on `clock`, in seconds; None where no answer is awaited.
        self._looked_at: float | None = None

    # -- when ------------------------------------------------------------------------------------------------------------

    def claim(self) -> bool:
        """Claim for one channel that has credit and reason to; return whether anything may have come by it.

        Raises:
            redis.exceptions.RedisError: the claim was refused or the connection failed (`error_translation.translate`).
        """
        if self._session.service.process_end.begun:
            return False
        if self._looked_at is not None:
            self._session.commands.read_ready()
        if self._found:
            self._add_found()
        came = self._take_pending() if self.pending is not None else self._claim_for_next()
        # Before this channel's messages are delivered: the others' are claimed in between.
        if self._found:
            self._add_found()
        return came

    def _claim_for_next(self) -> bool:
        at, everyone = self._next, self._consumers
        # Those first that have not claimed for the longest time.
        for consumers in [*everyone[at:], *everyone[:at]]:
            consumers.add_due_candidates()
            if not consumers.candidates or (consumers.buffer and not self._overfetches):
                continue
            credit = consumers.available(self.batch)
            if credit > 0 and not (self.delay_s() or (self._hub.attached and self._waits_for_credit(consumers, credit))):
                self._claim_at = 0.0
                return self._claim_for(consumers, credit)
        return False

    @property
    def due(self) -> bool:
        """Whether a channel with credit and reason to claim would wait until others have delivered what they have."""
        batch = self.batch
        return any(consumers.buffer for consumers in self._consumers) and any(
            consumers.candidates and not consumers.buffer and consumers.available(batch) > 0 for consumers in self._consumers
        )

    def delay_s(self) -> float:
        """Return the seconds for which no claim may be made, by the option `min_fetch_interval`."""
        if not self._delayed_until:
            return 0.0
        rest_s = max(0.0, self._delayed_until - time.monotonic())
        if rest_s and self._hub.attached:
            self._hub.wake_in(rest_s)
        return rest_s

    def _waits_for_credit(self, consumers: QueueConsumers, credit: int) -> bool:
        """Return whether a claim had better wait: a pool frees credit one by one, and one round trip can serve several.

        Only with more than half of the prefetch in hand, so that no worker idles, and for `CREDIT_WAIT_S` at the most: a consumer
        that holds messages on purpose must not starve.
        """
        limit = consumers.credit.prefetch_count
        if not limit or 2 * credit >= limit:
            return False
        now = time.monotonic()
        if not self._claim_at:
            self._claim_at = now + CREDIT_WAIT_S
            self._hub.wake_in(CREDIT_WAIT_S)
        return now < self._claim_at

    def comes_anyway(self) -> bool:
        """Return whether there will be a claim without a wake-up: one waits for more credit, or is on its way."""
        if self._claim_at < time.monotonic():
            self._claim_at = 0.0
        return bool(self._claim_at) or self.pending is not None

    def recheck(self) -> None:
        """Give the channels reasons to claim after a wait without a wake-up: messages, or a queue with rules.

        One plain command asks for all queues: an idle worker does nothing more often.

        Raises:
            redis.exceptions.RedisError: as `claim` does.
        """
        restricted = self._restricted_queues.names
        ready = self._plain_ready()
        some = not ready or bool(self._session.commands.command("EXISTS", *ready))
        for consumers in self._consumers:
            consumers.add_candidates(list(consumers.consumed) if some else restricted)

    def _plain_ready(self) -> list[bytes]:
        """Return the keys of the ready messages of the queues without rules."""
        restricted = self._restricted_queues.names
        plain = {queue for consumers in self._consumers for queue in consumers.consumed if queue not in restricted}
        return [self._session.keys.queue(queue).ready for queue in plain]

    def look(self) -> None:
        """As `recheck`, without a wait for the answer, which a later turn takes: a server that hangs keeps no other one waiting.

        Raises as `claim` does.
        """
        if self.looks:
            self._session.commands.read_ready()
            self.check_pending()
            return
        ready = self._plain_ready()
        if ready:
            self._looked_at = clock.now_s()
            self._session.commands.command_nowait("EXISTS", *ready, done=lambda reply, _: self._noted(reply))
        for consumers in self._consumers:
            consumers.add_candidates(self._restricted_queues.names if ready else list(consumers.consumed))

    @property
    def looks(self) -> bool:
        """Whether the answer to a look is awaited."""
        return self._looked_at is not None

    def _noted(self, reply: Any) -> None:
        """Take the answer to a look, in the thread that reads it."""
        self._looked_at = None
        self._checked([queue for consumers in self._consumers for queue in consumers.consumed], reply)
        if threading.get_ident() != self._session.loop_thread:
            self._session.waker.wake()

    # -- one claim -------------------------------------------------------------------------------------------------------

    def pending_for(self, consumers: QueueConsumers) -> int:
        """Return how many messages a claim that is on its way may bring for one channel."""
        pending = self.pending
        return pending.credit if pending is not None and pending.consumers is consumers else 0

    def _claim_for(self, consumers: QueueConsumers, credit: int) -> bool:
        self.claims += 1
        if self._session.unreported:
            self._session.unreported = False
            self._session.service.wait_until_reported()
        if self._interval_s:
            self._delayed_until = time.monotonic() + self._interval_s
        if len(self._consumers) > 1:
            self._rotate(consumers)
        request = consumers.next_request(credit)
        restricted = self._restricted_queues
        by_rules = bool(restricted.names) and restricted.concern(request.queues)
        if not by_rules and self.pool_is_concurrent and self._hub.attached and consumers.credit.busy:
            self._send(consumers, request)
            return False
        asked_at = clock.now_s()
        if by_rules or len(request.queues) > MAX_QUEUES:
            result = FetchResult()
            try:
                restricted.claim(request, result)
            except BaseException:
                # The server has given us what an earlier call brought.
                consumers.take_claimed(FetchResult(result.messages), asked_at)
                raise
        else:
            commands = self._session.claim_commands
            batch = commands.claim(request.queues, request.credit, share=request.share, held=request.unacked)
            result = self._result(batch)
        consumers.mark_checked(request.queues)
        consumers.take_claimed(result, asked_at)
        return True

    def _result(self, batch: Batch) -> FetchResult:
        if batch.restricted or batch.failures:
            return self._restricted_queues.learn(batch)
        return FetchResult(batch.messages, batch.more)

    def _send(self, consumers: QueueConsumers, request: FetchRequest) -> None:
        """Send a claim without waiting for its reply: of `MAX_QUEUES` queues at most, and for their part of the credit."""
        names, credit = request.queues[:MAX_QUEUES], request.credit
        if request.share:
            credit = math.ceil(credit * len(names) / len(request.queues))
        pending = PendingClaim(consumers, clock.now_s(), credit)
        unacked = request.unacked[:MAX_QUEUES] if credit > 1 else ()
        done = partial(self._answered, pending)
        pending.names = self._session.claim_commands.post(names, credit, share=request.share, held=unacked, done=done)
        self.pending = pending
        # A wake-up that comes from now on is news.
        consumers.mark_checked(pending.names)

    def _answered(self, pending: PendingClaim, reply: Any, error: Exception | None) -> None:
        """Keep the reply, in the thread that reads it."""
        pending.answer = (reply, error)
        if threading.get_ident() != self._session.loop_thread:
            self._session.waker.wake()

    def _take_pending(self) -> bool:
        """Hand what has come over to the channel's consumers; return False where nothing has. Raises as `claim` does."""
        pending = self.pending
        if pending is None or pending.answer is None:
            return False
        self.pending = None
        reply, error = pending.answer
        if error is not None:
            raise error
        pending.consumers.take_claimed(
            self._result(self._session.claim_commands.read_reply(reply, pending.names)), pending.asked_at
        )
        return True

    def finish_pending(self) -> None:
        """Wait for the reply of a claim that is on its way, and hand it over. Raises as `claim` does."""
        pending = self.pending
        if pending is not None and not self._session.broken:
            self._session.commands.read_until(until=lambda: pending.answer is not None)
            self._take_pending()

    def check_pending(self) -> None:
        """Give the connection up where the server has been silent for as long as it may be."""
        pending, timeout_s = self.pending, self._session.options.socket_timeout
        claimed_at = None if pending is None or pending.answer is not None else pending.asked_at
        asked_at = min((at for at in (claimed_at, self._looked_at) if at is not None), default=math.inf)
        if timeout_s is not None and clock.now_s() - asked_at > timeout_s:
            self._session.commands.abort(RedisTimeoutError("the server did not answer a claim, or a look for messages"))

    # -- several channels ------------------------------------------------------------------------------------------------

    def _rotate(self, consumers: QueueConsumers) -> None:
        """Note that one of several channels claims now; ask in the same write for messages of those without a reason to claim.

        While one of them has work, the wake-ups of the others are not waited for.
        """
        everyone = self._consumers
        self._next = (everyone.index(consumers) + 1) % len(everyone)
        # What this claim brings is unknown yet; as a rule it is as much as the one before.
        self._brought += max(1, consumers.order.brought)
        if self._brought < CHECK_EVERY:
            return
        self._brought = 0
        names = [
            queue
            for other in everyone
            if not other.candidates and other is not consumers and other.available(self.batch) > 0
            for queue in other.order.idle(IDLE_QUEUES)
        ]
        if names:
            ready = [self._session.keys.queue(name).ready for name in names]
            self._session.commands.command_nowait(
                "EXISTS", *ready, done=lambda reply, _: self._checked(names, reply), buffered=True
            )  # fmt: skip

    def _checked(self, names: Sequence[str], reply: Any) -> None:
        # In whatever thread reads the reply.
        if reply:
            self._found = names

    def _add_found(self) -> None:
        """Give the channels whose queues were found to have messages a reason to claim."""
        names, self._found = self._found, ()
        for consumers in self._consumers:
            consumers.add_candidates(names)
