"""Puts messages back that their consumer has held for longer than their queue's `x-consumer-timeout`; gives up such broadcasts.

Each process sees to what it holds itself: a consumer that hangs still has a maintenance thread, and the leases of a process that
hangs as a whole end after the visibility timeout.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.acks import SETTLED_A_CALL
from celery_redis_plus.broker.consumers.unacked import DeliveryState
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask
from celery_redis_plus.maintenance.runner import UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redis_plus.broker.consumers.acks import Acknowledger
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
    from celery_redis_plus.broker.fanout.subscriber_cursor import Owner, SubscriberCursors, UnackedBroadcast

logger = logging.getLogger(__name__)

#: How often a queue's timeout is looked after in the course of it; and the shortest and the longest pause, in seconds.
LOOKS, SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 10, 0.05, 1.0
#: Seconds after which a broadcast is given up once more whose dead letter the broker has refused.
AGAIN_S = 5.0


class ConsumerTimeouts(MaintenanceTask):
    """The maintenance task that ends what takes a consumer too long."""

    def __init__(
        self, unacked_messages: UnackedMessages, acknowledger: Acknowledger, positions: SubscriberCursors
    ) -> None:  # fmt: skip
        """Look at `unacked_messages`, which are put back by `acknowledger`, and at the broadcasts of `positions`."""
        self._unacked_messages = unacked_messages
        self._positions = positions
        self._acknowledger = acknowledger
        #: Message -> (claim number, whether the work has begun), and when that was first seen, on `clock`, in seconds.
        self._since: dict[UnackedMessage, tuple[tuple[int, bool], float]] = {}
        #: Broadcast -> when it was first seen unsettled, on `clock`, in seconds.
        self._broadcasts_since: dict[UnackedBroadcast, float] = {}
        self._failures = KeyFailures(logger, "cannot end what a consumer has held for too long")

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return self._due_at if self._unacked_messages.timeouts_s else math.inf

    def run(self) -> None:
        """Put back what is overdue. Raises as `CommandConnection.call` does."""
        timeouts_s, now = dict(self._unacked_messages.timeouts_s), clock.now_s()
        shortest_s = min(timeouts_s.values(), default=LONGEST_PAUSE_S)
        self._due_at = now + min(max(shortest_s / LOOKS, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
        before, self._since = self._since, {}
        unacked_by_queue = self._unacked_messages.by_queue()
        for queue, timeout_s in timeouts_s.items():
            overdue = []
            for unacked in unacked_by_queue.get(queue, ()):
                if unacked.state is not DeliveryState.DELIVERED:
                    continue
                seen = (unacked.claim, unacked.started)
                known, since = before.get(unacked, (seen, now))
                self._since[unacked] = (seen, since if known == seen else now)
                if now - self._since[unacked][1] >= timeout_s:
                    overdue.append(unacked)
            for at in range(0, len(overdue), SETTLED_A_CALL):
                with self._failures.alone(queue):
                    self._put_back(queue, timeout_s, overdue[at : at + SETTLED_A_CALL])
        self._end_broadcasts(timeouts_s, now)

    def _end_broadcasts(self, timeouts_s: Mapping[str, float], now: float) -> None:
        """Give up the broadcasts that are overdue: they would come to the same subscriber again."""
        before, self._broadcasts_since = self._broadcasts_since, {}
        for position in self._positions.all():
            timeout_s, owner = timeouts_s.get(position.queue), position.owner
            if timeout_s is None or owner is None or owner.broken:
                continue
            for unacked in list(position.open.values()):
                # The publisher of a tracked one has its own limit (`ack_timeout`).
                if unacked.tracked is not None:
                    continue
                since = self._broadcasts_since[unacked] = before.get(unacked, now)
                if now - since >= timeout_s:
                    # It stays unsettled where its dead letter is refused, or nobody would have it.
                    self._broadcasts_since[unacked] = now - timeout_s + AGAIN_S
                    self._give_up(owner, unacked, timeout_s)

    def _give_up(self, owner: Owner, unacked: UnackedBroadcast, timeout_s: float) -> None:
        ended = False
        # Over its own connection: if that is lost, the broadcast comes again.
        with suppress(OSError, *UNREACHABLE), self._failures.alone(unacked.position.queue):
            ended = owner.reject_broadcast(unacked)
        if ended:
            position = unacked.position
            logger.warning(
                "broadcast %s of exchange %r was with a consumer of queue %r here for longer than x-consumer-timeout (%g s): it "
                "is given up", unacked.entry[0].decode(), position.keys.exchange, position.queue, timeout_s,
                extra={"queue": position.queue, "exchange": position.keys.exchange},
            )  # fmt: skip

    def _put_back(self, queue: str, timeout_s: float, overdue: list[UnackedMessage]) -> None:
        self._acknowledger.time_out(overdue)
        logger.warning(
            "%d message(s) of queue %r were with a consumer here for longer than x-consumer-timeout (%g s), and went back: %s",
            len(overdue), queue, timeout_s, ", ".join(unacked.tag for unacked in overdue[:3]),
            extra={"queue": queue},
        )  # fmt: skip
