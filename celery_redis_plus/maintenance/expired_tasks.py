"""Wakes the worker that revokes expired tasks, where this process is one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus import clock

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.expired_tasks import ExpiredTasks

#: Seconds between two checks; spread, so that a hundred workers do not check together. A task that expires sends a wakeup too.
EXPIRED_CHECK_S = 20.0


class ExpiredTaskRevocation:
    """The maintenance task that knows whether expired tasks wait."""

    def __init__(self, tasks: ExpiredTasks) -> None:
        """Look through `tasks`."""
        self._tasks = tasks
        self._check_at = 0.0
        self._on_expired: Callable[[], None] | None = None

    @property
    def on_expired(self) -> Callable[[], None] | None:
        """Called in the maintenance thread when expired tasks wait; must not block. None: this process is no worker."""
        return self._on_expired

    @on_expired.setter
    def on_expired(self, callback: Callable[[], None] | None) -> None:
        self._on_expired = callback
        self._check_at = 0.0

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity without a callback."""
        return float("inf") if self._on_expired is None else self._check_at

    def run_soon(self) -> None:
        """Run next at once: a task has expired, or the connection was away."""
        self._check_at = 0.0

    def run(self) -> None:
        """Look, and tell. Raises as `CommandConnection.call` does."""
        self._check_at = clock.now_s() + random.uniform(0.8, 1.2) * EXPIRED_CHECK_S  # noqa: S311 - spreads load, guards nothing
        callback = self._on_expired
        if callback is not None and self._tasks.waiting():
            callback()
