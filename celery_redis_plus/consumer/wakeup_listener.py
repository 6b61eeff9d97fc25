"""Which wake-ups a connection's channels wait for, and what a wake-up, or the end of the wait, gives them reason to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.wakeup_waiter import WakeupWaiter
    from celery_redis_plus.connection.waker import Waker
    from celery_redis_plus.consumer.fetcher import FetchPolicy
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers


class WakeupListener:
    """The blocked call that waits for the wake-ups of all channels of a connection."""

    def __init__(self, waiter: WakeupWaiter, waker: Waker, consumers: list[QueueConsumers], policy: FetchPolicy) -> None:
        """Wait for the wakeups of `consumers`, which the caller keeps up to date.

        Args:
            waiter: waits on the server.
            waker: wakes the loop, where there is something to claim.
            consumers: those of the channels.
            policy: lets them claim.
        """
        self._waiter = waiter
        self._waker = waker
        self._consumers = consumers
        self._policy = policy

    def start_wait(self) -> None:
        """Wait for the wake-ups of the queues for which there is credit, unless a call that covers them is out already."""
        waiter = self._waiter
        wanted = self._wanted()
        if wanted and not waiter.waiting:
            waiter.start_wait(wanted)
        elif waiter.waiting and not set(wanted) <= set(waiter.waiting):
            waiter.wake()
            self.take(wait=True)
            if any(consumers.candidates for consumers in self._consumers):
                # A wake-up came meanwhile: claim first.
                self._waker.wake()
            else:
                waiter.start_wait(wanted)

    def take(self, *, wait: bool = False) -> None:
        """Read an ended wait: a queue with a wake-up is a candidate; after a timeout every queue is."""
        waiter = self._waiter
        if not waiter.waiting or not (wait or waiter.arrived()):
            return
        wakeup = waiter.take()
        used, delayed = False, self._policy.delay_s() > 0
        for consumers in self._consumers:
            if wakeup is None:
                consumers.recheck_all()
                used = True
                continue
            queues = [queue for queue in consumers.consumed if consumers.wakeups[queue] == wakeup]
            if queues:
                consumers.add_candidates(queues)
                used = used or (not delayed and consumers.available(self._policy.batch) > 0)
        if not used and wakeup is not None:
            # Woken for nothing: cancelled, or out of credit. The next in line shall look.
            waiter.notify(wakeup)

    def _wanted(self) -> tuple[bytes, ...]:
        """Return the wake-ups of the queues for which there is credit; none while no claim may be made."""
        wakeups: dict[bytes, None] = {}
        for consumers in () if self._policy.delay_s() else self._consumers:
            if consumers.consumed and consumers.available(self._policy.batch) > 0:
                wakeups.update(dict.fromkeys(consumers.wakeups[queue] for queue in consumers.consumed))
        return tuple(wakeups)
