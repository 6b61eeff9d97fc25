"""Clears away what is left of transient queues that were not used in time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

logger = logging.getLogger(__name__)

#: Seconds between two checks for vanished queues.
VANISHED_CHECK_S = 30.0


class Janitor(MaintenanceTask):
    """The leader's task that keeps the list of queues true."""

    def __init__(
        self,
        queues: Queues,
        bindings: Bindings,
        consumed: ConsumedQueues,
        *,
        on_unbound: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """Clear away by `queues` and `bindings`, but for what is in `consumed`.

        `on_unbound` is called with exchange and queue when a vanished queue's binding has gone with it.
        """
        self._queues = queues
        self._bindings = bindings
        self._consumed = consumed
        self._on_unbound = on_unbound
        #: Vanished queues whose messages are still to be freed; each then leaves a tombstone.
        self._vanished: deque[str] = deque()
        self._failures = KeyFailures(logger, "cannot be cleared away")
        self._clear_at = clock.now_s() + 1.0

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return 0.0 if self._vanished else self._clear_at

    def run(self) -> None:
        """Do what is due. Raises as `CommandConnection.call` does."""
        slice_ = Slice()
        if not self._vanished and clock.now_s() >= self._clear_at:
            self._clear_at = clock.now_s() + VANISHED_CHECK_S
            self._clear()
        while self._vanished and not slice_.over:
            self._free_page()

    def clear(self) -> None:
        """Remove what is left of transient queues that were not used in time: all of it, however long that takes."""
        self._clear()
        while self._vanished:
            self._free_page()

    def _clear(self) -> None:
        # What this process consumes it declares again, should it have expired: it was frozen, or the server's clock stepped.
        here = {queue.name for queue in self._consumed.all()}
        overdue = [name for name in self._queues.registry.overdue() if name not in here]
        if not overdue:
            return
        # In this order: what dies in between leaves a queue in the list, to be cleared by the next who looks.
        unbound = self._bindings.unbind_queues(overdue)
        gone = []
        for name in overdue:
            done = False
            with self._failures.alone(name):
                if self._queues.remove_remains(name):
                    gone.append(name)
                done = True
            if not done:
                # It stands first among the overdue.
                self._queues.registry.look_later(name)
        for exchange, binding in unbound:
            if binding.queue not in gone:
                # Its client came back while we were at it.
                with self._failures.alone(binding.queue):
                    self._bindings.bind(exchange, binding)
            else:
                self._on_unbound(exchange, binding.queue)
        self._vanished.extend(gone)

    def _free_page(self) -> None:
        """Free some messages of the first vanished queue; where none is left, remember it."""
        name, freed = self._vanished[0], 0
        with self._failures.alone(name):
            freed = self._queues.free_page(name)
        if not freed:
            self._vanished.popleft()
            with self._failures.alone(name):
                self._queues.registry.bury(name)
