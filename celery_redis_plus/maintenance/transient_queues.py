"""Keeps transient queues alive while they are used here.

One that is consumed lives as long as its consumers count, however short its life while unused (`x-expires`) is: a process that
stands still for less than that finds it again. One that is only read one message at a time has nothing but its own life.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.heartbeat import LONGEST_BEAT_S
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueue, ConsumedQueues

logger = logging.getLogger(__name__)

#: Seconds after which the list of transient queues is read again, in case it changed unnoticed.
RELIST_S = 60.0
#: Seconds between two calls for a queue that is consumed, at most: the keys of its messages live for an hour (`lua/declare.lua`).
LONGEST_INTERVAL_S = 600.0
#: No consumer counts for less (`lua/include/living.lua`).
LEAST_TIMEOUT_S = 4.0
#: Seconds after which a queue is touched again where the broker has refused it.
AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Life:
    """For how many seconds a transient queue is to live from now on, and after how many to say so again."""

    seconds: float
    interval_s: float

    @classmethod
    def of(cls, queue: ConsumedQueue, timeout_s: float) -> Life:
        """Return that of a queue that is used here; `timeout_s` is `consumer_heartbeat_timeout`."""
        unused_s = (queue.ttl_ms or 0) / 1000
        if not queue.consumers:
            return cls(unused_s, unused_s / 2)
        # When the next call is due, all of the time is left for which the consumers count: from their next heartbeat on.
        needed_s = max(unused_s, max(timeout_s, LEAST_TIMEOUT_S) + LONGEST_BEAT_S)
        interval_s = min(needed_s / 3, LONGEST_INTERVAL_S)
        return cls(needed_s + interval_s, interval_s)


class TransientQueues(MaintenanceTask):
    """The maintenance task that renews the TTLs of the transient queues that this process uses."""

    def __init__(
        self,
        queues: Queues,
        consumed: ConsumedQueues,
        *,
        timeout_s: float,
    ) -> None:
        """Look after the queues in `consumed`, unless the looks at their consumers have kept their records.

        `timeout_s` is `consumer_heartbeat_timeout`.
        """
        self._queues = queues
        self._consumed = consumed
        self._timeout_s = timeout_s
        self._list_at = 0.0
        self._touch_at: dict[str, float] = {}
        #: Up to where the messages of a long queue were touched, where a slice ended in its middle.
        self._touched: dict[str, int] = {}
        self._failures = KeyFailures(logger, "cannot be kept alive")

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return min(self._list_at, *self._touch_at.values()) if self._touch_at else self._list_at

    def run_soon(self) -> None:
        """Run next at once: the connection was away, or what is consumed has changed."""
        self._list_at = 0.0
        self._touch_at = dict.fromkeys(self._touch_at, 0.0)

    def run(self) -> None:
        """Do what is due. Raises as `CommandConnection.call` does."""
        now = clock.now_s()
        if now >= self._list_at:
            self._list(now)
        slice_ = Slice()
        # A long pass over one queue's messages waits for the queues that it would keep from their turn.
        for queue, at in sorted(self._touch_at.items(), key=lambda item: item[0] in self._touched):
            if now >= at and not slice_.over:
                done = False
                with self._failures.alone(queue):
                    self._touch(queue, now, slice_)
                    done = True
                if not done:
                    self._touch_at[queue] = now + AGAIN_S

    def _list(self, now: float) -> None:
        self._list_at = now + RELIST_S
        transient = [queue.name for queue in self._consumed.all() if queue.ttl_ms is not None]
        self._touch_at = {name: self._touch_at.get(name, 0.0) for name in transient}

    def _touch(self, queue: str, now: float, slice_: Slice) -> None:
        used = self._consumed.get(queue)
        if used is None or used.ttl_ms is None:
            self._touch_at.pop(queue, None)
            return
        life = Life.of(used, self._timeout_s)
        page, seen = self._touched.pop(queue, 0), self._consumed.seen.get(queue)
        if not page and seen is not None and seen.unpublished and seen.at + life.interval_s > now:
            self._touch_at[queue] = seen.at + life.interval_s
            return
        while (page := self._queues.touch_page(queue, page, int(life.seconds * 1000))) > 0:
            if slice_.over:
                # It stays due, and goes on from there, behind the others.
                self._touched[queue] = page
                self._touch_at[queue] = self._touch_at.pop(queue)
                return
        self._touch_at[queue] = now + life.interval_s
