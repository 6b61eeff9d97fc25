"""What ends the sleep of the maintenance thread: one blocked call over the wakeups of its tasks, and channels of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.wakeup_waiter import WakeupWaiter
from celery_redis_plus.connection.poll import wait_readable

if TYPE_CHECKING:
    from celery_redis_plus.connection.blocking_connection import BlockingConnection
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.waker import Waker
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.consumer_heartbeats import ConsumerHeartbeats
    from celery_redis_plus.maintenance.lost_processes import LostProcesses
    from celery_redis_plus.maintenance.sweeper import Sweeper
    from celery_redis_plus.maintenance.unconsumed_queues import UnconsumedQueues

#: Seconds for which the blocked call may wait; a dead connection is noticed by then.
TIMER_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class WokenTasks:
    """The tasks that other processes may make due."""

    sweeper: Sweeper
    unconsumed_queues: UnconsumedQueues
    consumer_heartbeats: ConsumerHeartbeats
    lost_processes: LostProcesses

    def by_wakeup(self, keys: Keys, swept: Iterable[str]) -> dict[bytes, Callable[[], None]]:
        """Return each wakeup, those of the queues `swept` among them, with what makes its task due."""
        found: dict[bytes, Callable[[], None]] = {
            keys.queue(name).schedule_wakeup: partial(self.sweeper.run_soon, name) for name in swept
        }
        found[keys.sweep_wakeup] = self.unconsumed_queues.run_soon
        found.update(dict.fromkeys(self.consumer_heartbeats.probes, self.consumer_heartbeats.run_soon))
        if self.lost_processes.reports:
            found[self.lost_processes.wakeup] = self.lost_processes.run_soon
        return found


class TaskWakeups:
    """The sleep of the maintenance thread."""

    def __init__(
        self, blocking: BlockingConnection, commands: CommandConnection, waker: Waker, *, name: str, keys: Keys, tasks: WokenTasks
    ) -> None:
        """Block over `blocking`, and end that over `commands` as the process `name`; channels use `waker`."""
        self._blocking = blocking
        self._waiter = WakeupWaiter(blocking, commands, wake=keys.client_wakeup(name), polling_interval_s=TIMER_WAIT_S)
        self._waker = waker
        self._keys = keys
        self._tasks = tasks
        #: What the wait that goes on makes due, by wakeup.
        self._waits_for: dict[bytes, Callable[[], None]] = {}

    def wait(self, wait_s: float, swept: Iterable[str]) -> None:
        """Sleep for `wait_s` seconds at most; a wakeup, of the queues `swept` among others, makes its task due.

        Raises as `BlockingConnection.start` and `CommandConnection.call` do.
        """
        due = self._tasks.by_wakeup(self._keys, swept)
        if tuple(due) != self._waiter.waiting or self._blocking.login_due:
            if self._waiter.waiting:
                self._make_due(self._waiter.cancel_wait())
            self._waiter.start_wait(tuple(due))
            self._waits_for = due
        descriptors = [self._waker.fileno()]
        if self._waiter.waiting:
            descriptors.append(self._blocking.fileno())
        wait_readable(descriptors, wait_s)
        self._waker.clear()
        if self._waiter.arrived():
            self._make_due(self._waiter.take())

    def abort(self) -> None:
        """Drop the connection, and the call with it."""
        self._blocking.abort()
        self._waiter.reset()

    def _make_due(self, wakeup: bytes | None) -> None:
        if wakeup is not None:
            self._waits_for[wakeup]()
