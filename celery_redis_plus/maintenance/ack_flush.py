"""Sends gathered acks when the loop that should send them does not come to it.

A solo worker runs its tasks in a turn of the loop; a worker with threads lets its loop sleep while they work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.acks import Acknowledger


class AckFlush:
    """The maintenance task that bounds how long an ack waits for others."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Flush nothing yet; `wake` wakes the thread that runs this."""
        self._wake = wake
        #: Those that have gathered acks.
        self._acknowledgers: set[Acknowledger] = set()

    def schedule(self, acknowledger: Acknowledger) -> None:
        """Flush `acknowledger` when its acks are due. From any thread, after it has gathered one."""
        if acknowledger not in self._acknowledgers:
            self._acknowledgers.add(acknowledger)
            self._wake()

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity where no acks are gathered."""
        return min((acknowledger.flush_at for acknowledger in list(self._acknowledgers)), default=math.inf)

    def run(self) -> None:
        """Flush what is due. Never raises."""
        for acknowledger in list(self._acknowledgers):
            # First: what is gathered from now on is expected anew.
            self._acknowledgers.discard(acknowledger)
            acknowledger.flush_due()
            if acknowledger.has_batched:
                self._acknowledgers.add(acknowledger)
