"""What a process knows of one broker whatever it does there; and its maintenance service, where it needs one.

One `SharedState` per process and broker outlives every channel and connection. It loads no maintenance: a process that only
publishes has none.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.broker.line_interval import LineInterval

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.service import MaintenanceService
    from celery_redis_plus.options import Options

#: Seconds between two log lines about an exchange whose messages have no recipient.
UNROUTED_LOG_S = 60.0


class SharedState:
    """What all connections of a process to one broker share."""

    #: Does the maintenance; made when the process consumes, or waits for something, by `process_services.service_of`.
    service: MaintenanceService | None = None

    def __init__(self, connector: Connector, keys: Keys, options: Options) -> None:
        """Know nothing yet."""
        self.connector, self.keys, self.options = connector, keys, options
        #: Called with the service when it is made.
        self.on_service: Callable[[MaintenanceService], None] = lambda _: None
        #: The process's name on the server.
        self.name = secrets.token_hex(6)
        #: What this process has declared.
        self.topology = DeclaredTopology(options.shards, on_flush=self._note_flush)
        #: Paces the log lines about messages without a recipient, of all publishers of this process.
        self.unrouted = LineInterval(UNROUTED_LOG_S)
        #: Connections that failed, and those that were opened in place of one of them.
        self.lost_connections = self.reconnects = 0

    def note_lost_connection(self) -> None:
        """Note that a connection failed."""
        self.lost_connections += 1

    def note_connection(self) -> None:
        """Note that a connection was opened; it counts as a reconnect where one has failed before and has no successor."""
        if self.reconnects < self.lost_connections:
            self.reconnects += 1

    def _note_flush(self) -> None:
        if self.service is not None:
            self.service.note_flush()
