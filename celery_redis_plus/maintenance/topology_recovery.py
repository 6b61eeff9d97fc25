"""Declares again what this process consumes, should the server lose it: a flush, or an eviction policy that takes our keys.

The consumers of a queue that somebody has deleted are told.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.queue_registry import Absence
from celery_redis_plus.errors import PreconditionFailed
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

logger = logging.getLogger(__name__)

#: Seconds until the answers to questions for every queue and exchange by itself: one of them may have been evicted. They go with
#: the next heartbeat, so they are asked before. Of a flush that tells: the process' record is gone.
LOOK_S = 20.0
#: Seconds until a missing record is checked once more: a deletion removes the record first, and the queue's name from the list
#: of queues a moment later.
MISSING_RECHECK_S = 0.3


class TopologyRecovery(MaintenanceTask):
    """The maintenance task that keeps consumed queues, and the bindings that this process made, on the server."""

    def __init__(
        self,
        queues: Queues,
        bindings: Bindings,
        consumed: ConsumedQueues,
        topology: DeclaredTopology,
        *,
        on_flush: Callable[[], None],
    ) -> None:
        """Look after the queues in `consumed` and those of bindings that were made here, by what is in `topology`.

        `on_flush` is called when the database was found flushed.
        """
        self._queues = queues
        self._bindings = bindings
        self._consumed = consumed
        self._topology = topology
        self._flushes = topology.flushes
        self._on_flush = on_flush
        #: Something may be missing: an answer said so, or the connection was away.
        self._in_doubt = True
        #: What was missing at the last look, and since when, on `clock`, in seconds.
        self._suspects: dict[str, float] = {}
        self._failures = KeyFailures(logger, "cannot be declared again")

    def run_soon(self) -> None:
        """Look next, at once: the connection was away, and the server may have lost its data; or something is missing."""
        self._in_doubt = True
        self._due_at = 0.0

    def go_with_heartbeat(self, next_at: float) -> None:
        """Ask with the next call, where that is due before the next heartbeat, at `next_at` on `clock`, in seconds."""
        if not self._in_doubt and clock.now_s() < self._due_at <= next_at:
            self.run()

    def run(self) -> None:
        """Ask whether all is there; where that is in doubt, look, and declare again what is missing.

        Raises as `CommandConnection.call` does.
        """
        rest_s = random.uniform(0.8, 1.2) * LOOK_S  # noqa: S311 - spreads load, guards nothing
        self._due_at = clock.now_s() + rest_s
        consumed = {queue.name for queue in self._consumed.all()}
        if not consumed:
            # Nothing was lost here by a flush that is known by now.
            self._flushes = self._topology.flushes
            return
        if not self._in_doubt:
            self._bindings.ask_whether_lost(consumed | self._topology.bound_queues(), self.run_soon)
            return
        # In this order: a flush after the look at the mark is noticed the next time.
        self._bindings.check_flush()
        # A flush that is noticed here asks for this very run.
        self._in_doubt, self._due_at = False, clock.now_s() + rest_s
        flushes = self._topology.flushes
        if flushes != self._flushes:
            self._on_flush()
        # A binding alone would lead nowhere.
        wanted = sorted(consumed | self._topology.bound_queues())
        missing = self._missing(wanted, flushed=flushes != self._flushes)
        seen_at = clock.now_s()
        since = {name: self._suspects.get(name, seen_at) for name in missing}
        # Looks may follow each other at once; between a deletion and the next declaration somebody may need a moment.
        lasting = {name for name, at in since.items() if seen_at - at >= MISSING_RECHECK_S}
        for name in lasting:
            if missing[name] is Absence.DELETED:
                self._cancel_consumers(name)
            else:
                with self._failures.alone(name):
                    self._declare(name, missing[name])
        self._suspects = {name: at for name, at in since.items() if name not in lasting}
        if self._suspects:
            self._in_doubt, self._due_at = True, min(self._due_at, seen_at + MISSING_RECHECK_S)
            return
        self._bindings.restore_lost(self._topology.bound_exchanges())
        self._flushes = flushes

    def _missing(self, names: Sequence[str], *, flushed: bool) -> dict[str, Absence]:
        """Return the queues that were lost, and those with consumers here that were deleted."""
        unlisted = Absence.EVICTED if flushed else Absence.DELETED
        missing = {
            name: unlisted if absence is Absence.UNLISTED else absence
            for name, absence in self._queues.registry.missing(names).items()
        }
        return {name: absence for name, absence in missing.items() if absence is not Absence.DELETED or self._has_had(name)}

    def _has_had(self, name: str) -> bool:
        """Return whether a queue is consumed here, and was declared meanwhile."""
        consumed = self._consumed.get(name)
        return consumed is not None and consumed.declared

    def _cancel_consumers(self, name: str) -> None:
        logger.warning("queue %r, consumed here, was deleted: its consumers are cancelled", name, extra={"queue": name})
        self._consumed.deleted(name)

    def _declare(self, name: str, absence: Absence) -> None:
        arguments = self._topology.queue(name) or QueueArguments(durable=True)
        if absence is Absence.EXPIRED:
            logger.warning(
                "queue %r, consumed here, has expired: this process gave no sign of life in time, or the server's clock stepped. "
                "It is declared again, and messages of the meantime are lost",
                name,
                extra={"queue": name},
            )
        else:
            logger.warning(
                "the record of queue %r, consumed or bound here, vanished from the server (flushed or evicted): it is declared "
                "again",
                name,
                extra={"queue": name},
            )
        try:
            self._queues.declare(name, arguments)
            if absence is Absence.EXPIRED:
                self._bind(name)
            # Its life is extended at once: its consumers are still listed, and do not join again.
            self._consumed.redeclared(name, self._queues.ttl_ms(arguments))
        except PreconditionFailed as error:
            logger.warning("queue %r was declared otherwise meanwhile: %s", name, error, extra={"queue": name})

    def _bind(self, name: str) -> None:
        """Bind an expired queue as before: whoever has cleared it away has removed its bindings."""
        for exchange in self._topology.bound_exchanges():
            for binding in self._topology.bindings(exchange):
                if binding.queue == name:
                    self._bindings.bind(exchange, binding)
