"""When a connection claims, for which of its channels, and whether it waits for the messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.consumer.pending_claim import PendingClaim
from celery_redis_plus.consumer.rotation import ConsumerRotation

if TYPE_CHECKING:
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.fetch_policy import FetchPolicy
    from celery_redis_plus.consumer.hub_registration import HubRegistration
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers
    from celery_redis_plus.consumer.restricted_queues import RestrictedQueues

#: Seconds for which a claim waits for more credit while most of the prefetch is being worked on.
CREDIT_WAIT_S = 0.002


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
        self._rotation = ConsumerRotation(connection, consumers, policy)
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
