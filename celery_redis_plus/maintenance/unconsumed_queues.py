"""Finds the queues that have to be swept although they may have no consumer: messages expire there, or go on when they are dead.

The usual retry pattern is such a queue: a TTL, and a dead-letter exchange that leads back to the work queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.maintenance.leader import LeaderTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.maintenance.leader import Leadership

#: Seconds between two checks. A new queue sends a wakeup besides.
UNCONSUMED_CHECK_S = 20.0


class UnconsumedQueues(LeaderTask):
    """The leader's task that knows the queues that are always swept."""

    def __init__(self, queues: Queues, leadership: Leadership) -> None:
        """Look through `queues`, at once in each epoch of `leadership`."""
        super().__init__(leadership)
        self._queues = queues
        #: These queues.
        self.queues: list[str] = []

    def run(self) -> None:
        """Read the list, and remove queues that are gone. Raises as `CommandConnection.call` does."""
        self._due_at, self._epoch = clock.now_s() + UNCONSUMED_CHECK_S, self._leadership.epoch
        found = self._queues.registry.always_swept()
        gone = set(self._queues.registry.without_record(found))
        if gone:
            self._queues.registry.remove_always_swept(gone)
        self.queues = [name for name in found if name not in gone]
