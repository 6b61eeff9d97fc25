"""When a connection claims, for which of its channels, how much, and whether it waits for the messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED
from celery_redis_plus.consumer.queue_order import IDLE_QUEUES

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.fetch_request import FetchRequest
    from celery_redis_plus.consumer.hub_registration import HubRegistration
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers
    from celery_redis_plus.consumer.restricted_queues import RestrictedQueues
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.options import Options

#: Most messages of a claim, and in the buffer of a channel without a prefetch limit, where the options say nothing.
UNLIMITED = min(100, MAX_CLAIMED)
#: After so many messages (an empty claim counts as one) the next claim of a connection asks as well whether there are messages
#: for its other channels. That costs a twentieth of a claim.
CHECK_EVERY = 4
#: Seconds for which a claim waits for more credit while most of the prefetch is being worked on.
CREDIT_WAIT_S = 0.002


class FetchPolicy:
    """The pace of one connection's claims."""

    def __init__(self, options: Options, hub: HubRegistration) -> None:
        """Keep to `options`; the loop of `hub` turns again when a rest is over."""
        #: The most messages that a claim takes.
        self.batch = options.fetch_batch_size or UNLIMITED
        #: Whether claims are made while claimed messages wait to be delivered.
        self.overfetches = options.overfetch_factor > 1
        self._interval_s = options.min_fetch_interval
        self._hub = hub
        self._delayed_until = 0.0

    def claimed(self) -> None:
        """Note that a claim is made now."""
        if self._interval_s:
            self._delayed_until = time.monotonic() + self._interval_s

    def delay_s(self) -> float:
        """Return the seconds for which no claim may be made."""
        if not self._delayed_until:
            return 0.0
        rest_s = max(0.0, self._delayed_until - time.monotonic())
        if rest_s and self._hub.attached:
            self._hub.wake_in(rest_s)
        return rest_s


class ConsumerRotation:
    """Which channel claims next."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, consumers: list[QueueConsumers], policy: FetchPolicy
    ) -> None:  # fmt: skip
        """Rotate `consumers`, which the caller keeps up to date; ask over `commands` which queues have messages."""
        self._commands = commands
        self._keys = keys
        self._consumers = consumers
        self._policy = policy
        self._next = 0
        #: Messages that claims have brought since the last check.
        self._brought = 0
        #: Queues that were asked, and some of which have messages.
        self.found: Sequence[str] = ()

    def in_turn(self) -> list[QueueConsumers]:
        """Return the channels' consumers, those first that have not claimed for the longest time."""
        at = self._next
        return [*self._consumers[at:], *self._consumers[:at]] if at else self._consumers

    def claims(self, consumers: QueueConsumers) -> None:
        """Note that one of several channels claims now; ask in the same write for messages of those without a reason to claim.

        While one of them has work, the wake-ups of the others are not waited for.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
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
            if not other.candidates and other is not consumers and other.available(self._policy.batch) > 0
            for queue in other.order.idle(IDLE_QUEUES)
        ]
        if names:
            ready = [self._keys.queue(name).ready for name in names]
            self._commands.command_nowait("EXISTS", *ready, done=lambda reply, _: self._checked(names, reply), buffered=True)

    def _checked(self, names: Sequence[str], reply: Any) -> None:
        # In whatever thread reads the reply.
        if reply:
            self.found = names

    def add_found(self) -> None:
        """Give the channels whose queues were found to have messages a reason to claim."""
        names, self.found = self.found, ()
        for consumers in self._consumers:
            consumers.add_candidates(names)


class PendingClaim:
    """At most one claim of a connection whose reply has not been taken yet. For the loop's thread."""

    def __init__(self, connection: BrokerConnection, restricted_queues: RestrictedQueues) -> None:
        """Claim over `connection` by `restricted_queues`."""
        self._connection = connection
        self._restricted_queues = restricted_queues
        self._consumers: QueueConsumers | None = None
        self._names: Sequence[str] = ()
        self._asked_at = 0.0
        self._answer: tuple[Any, Exception | None] | None = None

    @property
    def out(self) -> bool:
        """Whether a claim has been sent and its reply not been taken."""
        return self._consumers is not None

    def send(self, consumers: QueueConsumers, request: FetchRequest) -> bool:
        """Send a claim; return False where it has to be made the other way, because a queue has rules for its consumers.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        self._answer = None
        asked_at = clock.now_s()
        names = self._restricted_queues.send(request, self._answered)
        if names is None:
            return False
        self._consumers, self._names, self._asked_at = consumers, names, asked_at
        # A wake-up that comes from now on is news.
        consumers.mark_checked(names)
        return True

    def _answered(self, reply: Any, error: Exception | None) -> None:
        """Keep the reply, in the thread that reads it."""
        self._answer = (reply, error)
        if threading.get_ident() != self._connection.loop_thread:
            self._connection.waker.wake()

    def take(self) -> bool:
        """Hand what has come over to the channel's consumers; return False where nothing has.

        Raises:
            redis.exceptions.RedisError: the server refused the claim, as `translation.translate` names it.
        """
        consumers, answer = self._consumers, self._answer
        if consumers is None or answer is None:
            return False
        self._consumers = self._answer = None
        reply, error = answer
        if error is not None:
            raise error
        consumers.add(self._restricted_queues.read(reply, self._names), self._asked_at)
        return True

    def finish(self) -> None:
        """Wait for the reply of a claim that is out, and hand it over. Raises as `take` does, or as the connection fails."""
        if self._consumers is not None and not self._connection.broken:
            self._connection.commands.read_until(until=lambda: self._answer is not None)
            self.take()

    def check(self) -> None:
        """Give the connection up where the server has been silent for as long as it may be."""
        timeout_s = self._connection.options.socket_timeout
        if self.out and self._answer is None and timeout_s is not None and clock.now_s() - self._asked_at > timeout_s:
            self._connection.commands.abort(RedisTimeoutError("the server did not answer a claim"))


class Fetcher:
    """The claims of one connection's channels."""

    def __init__(
        self,
        connection: BrokerConnection,
        restricted_queues: RestrictedQueues,
        consumers: list[QueueConsumers],
        policy: FetchPolicy,
        hub: HubRegistration,
    ) -> None:
        """Claim for `consumers`, which the caller keeps up to date, as `policy` and the loop of `hub` let them."""
        self._connection = connection
        self._restricted_queues = restricted_queues
        self._consumers = consumers
        self._policy = policy
        self._hub = hub
        self._rotation = ConsumerRotation(connection.commands, connection.keys, consumers, policy)
        #: The claim that is on its way.
        self.pending = PendingClaim(connection, restricted_queues)
        #: Whether work goes on in other threads or processes, so that the loop is never kept from its ticks by it.
        self.pool_is_concurrent = False
        #: Until when a claim waits for more credit; 0: it does not.
        self._claim_at = 0.0

    def claim(self) -> bool:
        """Claim for one channel that has credit and reason to; return whether anything may have come by it."""
        rotation = self._rotation
        if rotation.found:
            rotation.add_found()
        came = self.pending.take() if self.pending.out else self._claim_for_next()
        # Before this channel's messages are delivered: the others' are claimed in between.
        if rotation.found:
            rotation.add_found()
        return came

    def _claim_for_next(self) -> bool:
        for consumers in self._rotation.in_turn():
            consumers.add_due_candidates()
            if not consumers.candidates or (consumers.buffer and not self._policy.overfetches):
                continue
            credit = consumers.available(self._policy.batch)
            if credit > 0 and not (self._policy.delay_s() or (self._hub.attached and self._waits_for_credit(consumers, credit))):
                self._claim_at = 0.0
                return self._claim_for(consumers, credit)
        return False

    def _claim_for(self, consumers: QueueConsumers, credit: int) -> bool:
        self._policy.claimed()
        if len(self._consumers) > 1:
            self._rotation.claims(consumers)
        request = consumers.next_request(credit)
        if self.pool_is_concurrent and self._hub.attached and consumers.credit.busy and self.pending.send(consumers, request):
            return False
        asked_at = clock.now_s()
        result = self._restricted_queues.claim(request)
        consumers.mark_checked(request.queues)
        consumers.add(result, asked_at)
        return True

    @property
    def due(self) -> bool:
        """Whether a channel with credit and reason to claim would wait until others have delivered what they have."""
        batch = self._policy.batch
        return any(consumers.buffer for consumers in self._consumers) and any(
            consumers.candidates and not consumers.buffer and consumers.available(batch) > 0 for consumers in self._consumers
        )

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
        return bool(self._claim_at) or self.pending.out
