"""Moves on the deadlines of unacked messages every few seconds, whatever the consumer is doing; warns where that comes late.

After a step of the server's clock nothing is recovered for as long as `maintenance/sweeper.py` says. Every living process has to
send a heartbeat within that time, also one whose connection never broke: so the grace is two intervals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.connection.unpatched import threads_are_greenlets
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.leases import Leases
    from celery_redis_plus.broker.consumers.unacked import UnackedMessages

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats, at most.
LONGEST_INTERVAL_S = 5.0


def interval_s(visibility_timeout_s: float) -> float:
    """Return the seconds between two heartbeats."""
    return min(LONGEST_INTERVAL_S, visibility_timeout_s / 6)


class LeaseHeartbeats(MaintenanceTask):
    """The maintenance task that keeps claims alive."""

    #: How often heartbeats came later than planned by more than an interval.
    late = 0
    #: Whether it was said that the next one is late, and why a thread got no time that is no thread.
    _warned = _warned_of_greenlets = False

    def __init__(
        self,
        leases: Leases,
        unacked_messages: UnackedMessages,
        *,
        visibility_timeout_s: float,
        take_longest: Callable[[], tuple[str, float]],
    ) -> None:
        """Send for what stands in `unacked_messages`; `take_longest` is the runner's, for the warnings."""
        self._leases = leases
        self._unacked_messages = unacked_messages
        self._visibility_timeout_s = visibility_timeout_s
        self._interval_s = interval_s(visibility_timeout_s)
        self._take_longest = take_longest

    @property
    def late_s(self) -> float:
        """By how many seconds the next heartbeat is overdue now; 0 where nothing is unacked, or it is not by an interval."""
        late_s = clock.now_s() - self._due_at if self._due_at and len(self._unacked_messages) else 0.0
        return late_s if late_s > self._interval_s else 0.0

    def run(self) -> None:
        """Send one heartbeat for everything unacked. Raises as `CommandConnection.call` does."""
        late_s = self.late_s
        self._due_at = clock.now_s() + self._interval_s
        if late_s:
            self._warn_after(late_s)
        self._leases.extend(chain.from_iterable(self._unacked_messages.by_queue().values()))

    def warn_while_late(self, *, reachable: bool) -> None:
        """Warn, once for each delay, where heartbeats are overdue though the broker is `reachable`. From any thread."""
        late_s = self.late_s if reachable else 0.0
        if late_s and not self._warned:
            logger.warning(
                "heartbeats are %.1f s late, and other processes take over what this one holds after %.1f s: the thread for "
                "heartbeats gets no time, or waits for the broker",
                late_s, self._visibility_timeout_s,
            )  # fmt: skip
        self._warned = bool(late_s)
        if late_s:
            self._warn_of_greenlets()

    def _warn_after(self, late_s: float) -> None:
        self.late += 1
        longest_task, took_s = self._take_longest()
        logger.warning(
            "heartbeats came %.1f s late (%d times by now); other processes take over what this one holds after %.1f s. The "
            "longest task since the last one: %s, %.1f s",
            late_s, self.late, self._visibility_timeout_s, longest_task or "none", took_s,
        )  # fmt: skip
        self._warn_of_greenlets()

    def _warn_of_greenlets(self) -> None:
        """Say, once a process, why a thread got no time that is no thread."""
        if threads_are_greenlets() and not self._warned_of_greenlets:
            self._warned_of_greenlets = True
            logger.warning(
                "gevent or eventlet makes the thread for heartbeats a greenlet, which waits while another greenlet computes. "
                "What to do: make visibility_timeout (%g s) longer than the longest computation, or use another pool for it",
                self._visibility_timeout_s,
            )
