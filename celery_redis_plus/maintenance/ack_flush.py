"""Sends gathered acks when the loop that should send them does not come to it.

A solo worker runs its tasks in a turn of the loop: the ack of a quick one would wait behind a long one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers import acks
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.acks import Acknowledger

#: Seconds after its last ack for which a loop is still looked at unasked: to wake the thread for each batch costs both more.
LOOKED_AT_S = 0.05


class AckFlush(MaintenanceTask):
    """The maintenance task that bounds how long an ack waits for others."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Flush nothing yet; `wake` wakes the thread that runs this."""
        self._wake = wake
        #: Those with batched acks -> when to look at them, on `clock`, in seconds: also where a loop has flushed first, because
        #: what it batches afterwards wakes no thread.
        self._flush_at: dict[Acknowledger, float] = {}

    def schedule(self, acknowledger: Acknowledger) -> None:
        """Flush `acknowledger` when its acks are due. From any thread, after it has batched one."""
        self._look_later(acknowledger)
        self._wake()

    def _look_later(self, acknowledger: Acknowledger) -> None:
        acknowledger.flush_scheduled = True
        self._flush_at[acknowledger] = clock.now_s() + acks.EARLY_ACK_DELAY_S

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity where no acks are batched."""
        return min(list(self._flush_at.values()), default=math.inf)

    def run(self) -> None:
        """Flush what is due. Never raises."""
        now = clock.now_s()
        for acknowledger in [acknowledger for acknowledger, at in list(self._flush_at.items()) if at <= now]:
            # First: what is batched from now on is scheduled anew.
            del self._flush_at[acknowledger]
            acknowledger.flush_scheduled = False
            acknowledger.flush_due()
            if acknowledger.has_batched or acknowledger.last_due_at > now - LOOKED_AT_S:
                self._look_later(acknowledger)
