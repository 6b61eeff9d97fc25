"""In which order the channels of a connection claim, and how they learn of messages while no wake-up is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery_redis_plus.consumer.queue_order import IDLE_QUEUES

if TYPE_CHECKING:
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.fetch_policy import FetchPolicy
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers

#: After so many messages (an empty claim counts as one) the next claim of a connection asks as well whether there are messages
#: for its other channels. That costs a twentieth of a claim.
CHECK_EVERY = 4


class ConsumerRotation:
    """Which channel claims next."""

    def __init__(self, connection: BrokerConnection, consumers: list[QueueConsumers], policy: FetchPolicy) -> None:
        """Rotate `consumers`, which the caller keeps up to date."""
        self._connection = connection
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
            ready = [self._connection.keys.queue(name).ready for name in names]
            self._connection.commands.command_nowait(
                "EXISTS", *ready, done=lambda reply, _: self._checked(names, reply), buffered=True
            )

    def _checked(self, names: Sequence[str], reply: Any) -> None:
        # In whatever thread reads the reply.
        if reply:
            self.found = names

    def add_found(self) -> None:
        """Give the channels whose queues were found to have messages a reason to claim."""
        names, self.found = self.found, ()
        for consumers in self._consumers:
            consumers.add_candidates(names)
