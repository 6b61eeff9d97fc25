"""Notices that a queue was deleted, or deleted and declared again, by the id of its record that a sweep has met."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus.broker.queue_failures import KeyFailures

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import UnackedMessages
    from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

logger = logging.getLogger(__name__)


class RedeclaredQueues:
    """Keeps what this process knows of its queues as it is on the server."""

    def __init__(
        self,
        queues: Queues,
        topology: DeclaredTopology,
        consumed: ConsumedQueues,
        unacked_messages: UnackedMessages,
        *,
        on_missing: Callable[[], None],
    ) -> None:
        """Read records by `queues`, which keeps them in `topology`; tell `consumed` and `unacked_messages` of new arguments.

        `on_missing` is called when a queue that is consumed here has no record any more.
        """
        self._queues = queues
        self._topology = topology
        self._consumed = consumed
        self._unacked_messages = unacked_messages
        self._on_missing = on_missing
        self._failures = KeyFailures(logger, "has a record that cannot be read")

    def note_id(self, queue: str, record_id: bytes) -> None:
        """Read a queue's record again if it is not the one that this process knows; an empty id: it has none.

        Raises as `CommandConnection.call` does. A record that cannot be read is logged.
        """
        consumed = self._consumed.get(queue)
        if not record_id:
            if consumed is not None and consumed.declared:
                self._on_missing()
            return
        self._consumed.note_declared(queue)
        known = self._topology.records.get(queue)
        # A publish of this process may have read the new record before its consumers hear of it.
        consumed_by = b"" if consumed is None else consumed.record_id
        if known is not None and known.id == record_id and consumed_by in {b"", record_id}:
            return
        record = None
        with self._failures.alone(queue):
            record = self._queues.read(queue)
        if record is None:
            return
        self._unacked_messages.note_arguments(queue, record.arguments)
        if known is not None:
            logger.info(
                "queue %r was declared again, or has new arguments: %s", queue, record.arguments.encode(), extra={"queue": queue}
            )
        self._consumed.redeclared(queue, self._queues.ttl_ms(record.arguments), record.id)
