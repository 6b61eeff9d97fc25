"""Moves on the deadlines of unacked messages every few seconds, whatever the consumer is doing.

After a step of the server's clock nothing is recovered for as long as `maintenance/sweeper.py` says. Every living process has to
send a heartbeat within that time, also one whose connection never broke: so the grace is two intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.leases import Leases
    from celery_redis_plus.broker.consumers.unacked import UnackedMessages


#: Seconds between two heartbeats, at most.
LONGEST_INTERVAL_S = 5.0


def interval_s(visibility_timeout_s: float) -> float:
    """Return the seconds between two heartbeats."""
    return min(LONGEST_INTERVAL_S, visibility_timeout_s / 6)


class LeaseHeartbeats(MaintenanceTask):
    """The maintenance task that keeps claims alive."""

    def __init__(self, leases: Leases, unacked_messages: UnackedMessages, *, visibility_timeout_s: float) -> None:
        """Send for what stands in `unacked_messages`."""
        self._leases = leases
        self._unacked_messages = unacked_messages
        self._interval_s = interval_s(visibility_timeout_s)
        #: Called with the seconds by which a heartbeat came later than planned, where these are more than an interval.
        self.on_late: Callable[[float], None] = lambda _: None

    @property
    def late_s(self) -> float:
        """By how many seconds the next heartbeat is overdue now; 0 where nothing is unacked, or it is not by an interval."""
        late_s = clock.now_s() - self._due_at if self._due_at and len(self._unacked_messages) else 0.0
        return late_s if late_s > self._interval_s else 0.0

    def run(self) -> None:
        """Send one heartbeat for everything unacked. Raises as `CommandConnection.call` does."""
        now = clock.now_s()
        late_s = now - self._due_at if self._due_at else 0.0
        self._due_at = now + self._interval_s
        if late_s > self._interval_s and len(self._unacked_messages):
            self.on_late(late_s)
        self._leases.extend(chain.from_iterable(self._unacked_messages.by_queue().values()))
