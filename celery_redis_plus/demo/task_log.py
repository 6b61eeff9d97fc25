"""The task log: the workers' own records, in lists beside the broker's keys, in the same database.

A record is written when it happens, so it outlives a worker that is killed right after. Results of Celery are not used:
they would say what the worker reported, not what it did.
"""

from __future__ import annotations

import json
import time
from typing import Any

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.scans import scan_keys
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.options import Options

Record = dict[str, Any]

#: Of one read or write; as long as the transport's own timeouts.
SERVER_TIMEOUT_S = 5


class TaskLog:
    """Reads and writes the records of a run on the server `broker`, whose keys begin with `prefix`; close it at the end."""

    def __init__(self, broker: str, prefix: str) -> None:
        self.address = Address.from_url(broker)
        self._commands = CommandConnection(Connector(self.address, Options()), "demo", timeout=SERVER_TIMEOUT_S)
        self._prefix = prefix
        self.close = self._commands.close

    def note(self, kind: str, **facts: object) -> None:
        """Add a record: the facts, and the time."""
        self._commands.command("RPUSH", self._key(kind), json.dumps({**facts, "at": time.time()}))

    def read(self, kind: str, last: int = 0) -> list[Record]:
        """Return the records of one kind in the order in which they were written: the `last` ones; 0 is all of them."""
        return [json.loads(line) for line in self._commands.command("LRANGE", self._key(kind), -last, -1)]

    def count(self, kind: str) -> int:
        """Return how many records of one kind there are."""
        return int(self._commands.command("LLEN", self._key(kind)))

    def clock_offset_s(self) -> float:
        """Return how far the server's clock is ahead of ours, in seconds; half a round trip is unsure."""
        before = time.time()
        server_s = server_ms(self._commands) / 1000
        return server_s - (before + time.time()) / 2

    def remove_keys(self) -> None:
        """Remove all keys of the run, the broker's as well."""
        for page in scan_keys(self._commands, f"{self._prefix}*".encode()):
            if page:
                self._commands.command("UNLINK", *page)

    def _key(self, kind: str) -> str:
        return f"{self._prefix}task_log:{kind}"
