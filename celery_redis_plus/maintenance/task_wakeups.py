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
    from celery_redis_plus.maintenance.leader import Leadership
    from celery_redis_plus.maintenance.sweeper import Sweeper
    from celery_redis_plus.maintenance.unconsumed_queues import UnconsumedQueues

#: Seconds for which the blocked call may wait; a dead connection is noticed by then.
TIMER_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class WokenTasks:
    """The tasks that other processes may make due."""

    sweeper: Sweeper
    unconsumed_queues: UnconsumedQueues
    leadership: Leadership

    def by_wakeup(self, keys: Keys, swept: Iterable[str]) -> dict[bytes, Callable[[], None]]:
        """Return each wakeup, those of the queues `swept` among them, with what makes its task due."""
        found: dict[bytes, Callable[[], None]] = {
            keys.queue(name).schedule_wakeup: partial(self.sweeper.run_soon, name) for name in swept
        }
        if self.leadership.leads:
            found[keys.sweep_wakeup] = self.unconsumed_queues.run_soon
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
        #: What these wakeups were made of, and their keys: a process may consume 10,000 queues.
        self._made_of: tuple[object, ...] = ()
        self._wakeups: tuple[bytes, ...] = ()

    def wait(self, wait_s: float, swept: Iterable[str]) -> bool:
        """Sleep for `wait_s` seconds at most; a wakeup, of the queues `swept` among others, makes its task due.

        `swept` has to be the same object as long as it has the same queues. Returns whether anything came.

        Raises as `BlockingConnection.start` and `CommandConnection.call` do.
        """
        made_of = (swept, self._tasks.leadership.leads)
        changed = len(self._made_of) != len(made_of) or any(
            one is not other for one, other in zip(made_of, self._made_of, strict=True)
        )
        if (changed or self._waiter.waiting is not self._wakeups) or self._blocking.login_due:
            # What came meanwhile may be of a queue that is not swept here any more. Else it ends the next wait.
            self._waiter.cancel_wait()
            if changed:
                self._waits_for = self._tasks.by_wakeup(self._keys, swept)
                self._wakeups = tuple(self._waits_for)
                self._made_of = made_of
            self._waiter.start_wait(self._wakeups)
        descriptors = [self._waker.fileno()]
        if self._waiter.waiting:
            descriptors.append(self._blocking.fileno())
        if not wait_readable(descriptors, wait_s):
            return False
        self._waker.clear()
        if self._waiter.arrived():
            wakeup = self._waiter.take()
            if wakeup is not None:
                self._waits_for[wakeup]()
        return True

    def abort(self) -> None:
        """Drop the connection, and the call with it."""
        self._blocking.abort()
        self._waiter.reset()
