"""Gives back the messages of connections that were never closed: the program dropped them, and the collector freed them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import UnackedMessages
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursors
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
    from celery_redis_plus.maintenance.consumer_lists import ConsumerLists

#: Most sessions that wait: a process that consumes nothing has no thread that takes them, and nothing to release.
MAX_WAITING_SESSIONS = 10_000


class DroppedSessions(MaintenanceTask):
    """The maintenance task that releases the messages of dropped sessions, and removes their consumers."""

    def __init__(
        self,
        unacked_messages: UnackedMessages,
        consumed: ConsumedQueues,
        positions: SubscriberCursors,
        consumer_lists: ConsumerLists,
        *,
        wake: Callable[[], None],
    ) -> None:
        """Clean up there; `wake` wakes the maintenance tasks, and takes no lock."""
        self._unacked_messages = unacked_messages
        self._consumed = consumed
        self._positions = positions
        self._consumer_lists = consumer_lists
        self._wake = wake
        self._sessions: deque[str] = deque(maxlen=MAX_WAITING_SESSIONS)

    def note(self, session: str) -> None:
        """Note a session by its id. The collector calls this in any thread, inside whatever that does: it takes no lock."""
        self._sessions.append(session)
        self._wake()

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity where nothing was dropped."""
        return 0.0 if self._sessions else math.inf

    def run(self) -> None:
        """Clean up; other tasks tell the server."""
        while self._sessions:
            self._clean_up(self._sessions.popleft())

    def _clean_up(self, session: str) -> None:
        queues = set()
        for queue in self._consumed.all():
            for user in queue.users:
                if user.partition(CONSUMER_ID_SEPARATOR)[0] == session:
                    queues.add(queue.name)
                    self._consumed.remove(queue.name, user)
                    if user != session:
                        self._consumer_lists.deregister(queue.name, user)
        for position in self._positions.all():
            if position.owner is None and not position.orphaned_at:
                position.orphan()
        self._unacked_messages.drop(session, queues)
