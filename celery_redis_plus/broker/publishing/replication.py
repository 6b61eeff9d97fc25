"""How long a publish waits for replicas: less while they confirm nothing, so that a missing replica does not stop publishers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus import clock

if TYPE_CHECKING:
    from celery_redis_plus.connection.persistent_connection import PersistentConnection

#: While replicas are missing, a publish waits for this part of `wait_replicas_timeout`,
SHORT = 1 / 20
#: and for all of it once in this many of those times: a replica that is only slow is counted on again then.
BETWEEN_FULL = 10


class Replication:
    """How many replicas must have a message before its publish is done, and for how long a publish waits for them.

    The server's WAIT answers when enough replicas have confirmed, or when its timeout is over, even without any replica:
    after a failover to the only replica each publish would take the whole timeout, until the dead server is back.
    Source: https://redis.io/docs/latest/commands/wait/
    """

    def __init__(self, replicas: int = 0, timeout_s: float = 1.0, *, full_at: dict[tuple[str, int], float] | None = None) -> None:
        """Want so many `replicas`, and wait `timeout_s` seconds for them.

        Args:
            replicas: 0 for none.
            timeout_s: of one publish.
            full_at: servers whose replicas are missing, and when to wait for the whole time again, on `clock`. All connections of
                a process share it: kombu replaces the connection of a publish that raised an error.
        """
        self.replicas = replicas
        self._timeout_s = timeout_s
        self._full_at = {} if full_at is None else full_at
        #: Seconds that the last publish waited at the most.
        self.waited_s = timeout_s

    def timeout_ms(self, connection: PersistentConnection) -> int:
        """Return how long to wait now; WAIT takes 0 for ever, so at least 1."""
        self.waited_s = self._timeout_s
        if clock.now_s() < self._full_at.get(connection.peer, 0.0):
            self.waited_s *= SHORT
        return max(int(self.waited_s * 1000), 1)

    def note(self, connection: PersistentConnection, confirmed: int) -> None:
        """Note how many replicas have confirmed within that time."""
        if confirmed >= self.replicas:
            self._full_at.pop(connection.peer, None)
        elif self.waited_s == self._timeout_s:
            self._full_at[connection.peer] = clock.now_s() + BETWEEN_FULL * self._timeout_s
