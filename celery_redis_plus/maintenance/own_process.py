"""Knows which connections this process has to a broker, and what it would leave behind there."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import ProcessRecord
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import UnackedMessages
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursors
    from celery_redis_plus.connection.persistent_connection import PersistentConnection
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

#: Characters of a failing task's error in the registry.
FAILURE_TEXT = 200


class OwnProcess:
    """What this process says of itself in the registry of processes."""

    def __init__(
        self,
        own: Sequence[PersistentConnection],
        consumed: ConsumedQueues,
        unacked_messages: UnackedMessages,
        positions: SubscriberCursors,
        *,
        grace_s: float,
        heartbeat_s: float,
        failing: Callable[[], Mapping[str, str]] = dict,
        needed_besides: Callable[[], bool] = lambda: False,
    ) -> None:
        """Tell of the connections `own` of the maintenance thread, and of what stands in the other three.

        `grace_s` is `connection_lost_grace`, `heartbeat_s` the time between two heartbeats of the leases, in seconds. `failing`
        returns the maintenance tasks that fail, and what they raised; `needed_besides` whether this process does this
        broker's maintenance although it may consume nothing here.
        """
        #: Those of the maintenance thread.
        self.own = own
        self._consumed = consumed
        self._unacked_messages = unacked_messages
        self._positions = positions
        self._failing = failing
        self._needed_besides = needed_besides
        #: Until when this process looks for lost ones although it may have nothing, on `clock`, in seconds.
        self._looks_until = 0.0
        #: `connection_lost_grace`, in seconds; 0: no process asks for these connections.
        self.grace_s = grace_s
        #: Seconds after which heartbeats have failed.
        self._silence_s = max(grace_s, 2 * heartbeat_s)
        #: Command connections of the sessions: their end says something where the maintenance thread cannot connect.
        self._sessions: dict[int, weakref.ref[PersistentConnection]] = {}

    def add_connection(self, connection: PersistentConnection) -> None:
        """Note the command connection of a session that consumes. From any thread."""
        self._sessions[id(connection)] = weakref.ref(connection)

    def may_be_lost(self, since: float) -> bool:
        """Return whether this process may have counted as lost since a moment on `clock`, in seconds, at which it did not.

        Asked when the grace has passed since then.
        It was without a connection for the grace then; where its heartbeats fail besides, it may not know of that yet.
        """
        if not self.grace_s:
            return False
        age_s = clock.now_s() - since
        first = self.own[0]
        return age_s > self._silence_s or not first.connected or first.opened_at > since

    def look_for(self, seconds: float) -> None:
        """Have a record for so long, also without consumers: this process waits for what a lost one may have. From any thread."""
        self._looks_until = clock.now_s() + seconds

    @property
    def looks(self) -> bool:
        """Whether this process waits for what a lost one may have."""
        return clock.now_s() < self._looks_until

    @property
    def versions(self) -> tuple[int, int, int]:
        """What the record depends on: whether this process consumes elsewhere; changes of subscribers, and of consumed queues."""
        return int(self._needed_besides()), self._positions.version, self._consumed.version

    def record(self, run: str, started_at: float) -> ProcessRecord | None:
        """Return the record; None where the process neither consumes nor has messages, nor waits for a lost one.

        Args:
            run: the `run_id` of the server.
            started_at: when that run began, on `clock`: an older connection has ended, though it may not be noticed yet.
        """
        consumed = self._consumed.all()
        users = {(queue.name, user) for queue in consumed for user in queue.users}
        unacked = self._unacked_messages.sessions()
        if not users and not unacked and not self.looks and not self._needed_besides():
            return None
        # A user is a consumer, a session, or the owner of exclusive queues: each ends with or has the session's id.
        sessions = {user.rpartition(" ")[2].partition(CONSUMER_ID_SEPARATOR)[0] for _, user in users}
        sessions.update(session for session, _ in unacked)
        queues = {queue for queue, _ in users} | {queue for _, queue in unacked}
        ids = {
            connection.client_id
            for connection in self.connections()
            if connection.connected
            and connection.client_id is not None
            and connection.opened_at >= started_at
            # The ids of another server, whose end is not noticed yet after a failover, mean others here.
            and connection.peer == self.own[0].peer
        }
        return ProcessRecord(
            run=run,
            ids=tuple(sorted(ids)),
            grace_s=self.grace_s,
            sessions=tuple(sorted(sessions)),
            queues=tuple(sorted(queues)),
            host=socket.gethostname(),
            pid=os.getpid(),
            exchanges=tuple(sorted({position.keys.exchange for position in self._positions.all()})),
            failing={task: text[:FAILURE_TEXT] for task, text in self._failing().items()},
        )

    def connections(self) -> Iterator[PersistentConnection]:
        """Yield the connections of which one at least says that the process lives."""
        yield from self.own
        for key, reference in list(self._sessions.items()):
            connection = reference()
            if connection is None:
                if self._sessions.get(key) is reference:
                    del self._sessions[key]
            else:
                yield connection
