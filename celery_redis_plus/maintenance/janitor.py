"""Keeps transient queues alive while they are used here, and clears away what others left behind."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.time_slices import Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
    from celery_redis_plus.maintenance.shared_work import SharedWork

logger = logging.getLogger(__name__)

#: Seconds between two checks for vanished queues; spread, so that a hundred workers do not check together.
VANISHED_CHECK_S = 30.0
#: Seconds after which the list of transient queues is read again, in case it changed unnoticed.
RELIST_S = 60.0
#: Seconds after which a queue is touched again where the broker has refused it.
AGAIN_S = 5.0


class Janitor:
    """The maintenance task that keeps the list of queues true."""

    def __init__(
        self,
        queues: Queues,
        bindings: Bindings,
        watched: ConsumedQueues,
        shared: SharedWork,
        *,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """Look after the queues in `watched`; all processes of `shared` look for vanished ones.

        `on_gone` is called when a transient queue that is used here is gone: perhaps the database was flushed.
        """
        self._queues = queues
        self._bindings = bindings
        self._watched = watched
        self._shared = shared
        self._list_at = 0.0
        self._touch_at: dict[str, float] = {}
        #: Up to where the messages of a long queue were touched, where a slice ended in its middle.
        self._touched: dict[str, int] = {}
        #: Vanished queues whose messages are still to be freed; each then leaves a tombstone.
        self._vanished: deque[str] = deque()
        #: Called with exchange and queue when a vanished queue's binding has gone with it.
        self.on_unbound: Callable[[str, str], None] = lambda *_: None
        self._on_gone = on_gone
        self._failures = KeyFailures(logger, "cannot be kept alive, or cleared away")
        self._clear_at = clock.now_s() + random.uniform(1, VANISHED_CHECK_S)  # noqa: S311 - spreads load, guards nothing

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        if self._vanished:
            return 0.0
        return min(self._list_at, self._clear_at, *self._touch_at.values())

    def run_soon(self) -> None:
        """Run next at once: the connection was away, or what is watched has changed."""
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
        if slice_.over:
            return
        if now >= self._clear_at and not self._vanished:
            self._clear_at = now + random.uniform(0.8, 1.2) * self._shared.interval_s(VANISHED_CHECK_S)  # noqa: S311 - spreads load, guards nothing
            self._clear()
        while self._vanished and not slice_.over:
            self._free_page()

    def _list(self, now: float) -> None:
        self._list_at = now + RELIST_S
        transient = [queue.name for queue in self._watched.all() if queue.ttl_ms is not None]
        self._touch_at = {name: self._touch_at.get(name, 0.0) for name in transient}
        self._shared.unpublished = {name: seen for name, seen in self._shared.unpublished.items() if name in transient}

    def _touch(self, queue: str, now: float, slice_: Slice) -> None:
        ttl_ms = next((item.ttl_ms for item in self._watched.all() if item.name == queue), None)
        if ttl_ms is None:
            self._touch_at.pop(queue, None)
            return
        page = self._touched.pop(queue, 0)
        record_id = None if page else self._queues.touch_unpublished(queue, ttl_ms)
        if record_id is not None:
            self._shared.unpublished[queue] = (now, record_id)
            self._touch_at[queue] = now + ttl_ms / 2000
            return
        self._shared.unpublished.pop(queue, None)
        while (page := self._queues.touch_page(queue, page)) > 0:
            if slice_.over:
                # It stays due, and goes on from there, behind the others.
                self._touched[queue] = page
                self._touch_at[queue] = self._touch_at.pop(queue)
                return
        self._touch_at[queue] = now + ttl_ms / 2000
        if page < 0:
            self._on_gone()

    def clear(self) -> None:
        """Remove what is left of transient queues that were not used in time: all of it, however long that takes."""
        self._clear()
        while self._vanished:
            self._free_page()

    def _clear(self) -> None:
        # What this process consumes it declares again, should it have expired: it was frozen, or the server's clock stepped.
        here = {queue.name for queue in self._watched.all()}
        overdue = [name for name in self._queues.overdue() if name not in here]
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
                self._queues.look_later(name)
        for exchange, binding in unbound:
            if binding.queue not in gone:
                # Its client came back while we were at it.
                with self._failures.alone(binding.queue):
                    self._bindings.bind(exchange, binding)
            else:
                self.on_unbound(exchange, binding.queue)
        self._vanished.extend(gone)

    def _free_page(self) -> None:
        """Free some messages of the first vanished queue; where none is left, remember it."""
        name, freed = self._vanished[0], 0
        with self._failures.alone(name):
            freed = self._queues.free_page(name)
        if not freed:
            self._vanished.popleft()
            with self._failures.alone(name):
                self._queues.bury(name)
