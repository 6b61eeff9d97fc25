"""The task log: the workers' own records, in lists beside the broker's keys, in the same database.

A record is written when it happens, so it outlives a worker that is killed right after. Results of Celery are not used:
they would say what the worker reported, not what it did.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from celery_redis_plus.connection.address import Address

Record = dict[str, Any]

#: Of one read or write; as long as the transport's own timeouts.
SERVER_TIMEOUT_S = 5


class TaskLog:
    """Reads and writes records under `prefix`; close it at the end."""

    def __init__(self, address: Address, prefix: str) -> None:
        self.client = _client(address)
        self._prefix = prefix

    def note(self, kind: str, **facts: object) -> None:
        """Add a record: the facts, and the time."""
        self.client.rpush(self._key(kind), json.dumps({**facts, "at": time.time()}))

    def read(self, kind: str, last: int = 0) -> list[Record]:
        """Return the records of one kind in the order in which they were written: the `last` ones; 0 is all of them."""
        lines = self.client.lrange(self._key(kind), -last, -1)
        return [json.loads(line) for line in lines]

    def count(self, kind: str) -> int:
        """Return how many records of one kind there are."""
        return int(self.client.llen(self._key(kind)))

    def clock_offset_s(self) -> float:
        """Return how far the server's clock is ahead of ours, in seconds; half a round trip is unsure."""
        before = time.time()
        seconds, microseconds = self.client.time()
        after = time.time()
        offset: float = seconds + microseconds / 1e6 - (before + after) / 2
        return offset

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _key(self, kind: str) -> str:
        return f"{self._prefix}{kind}"


def keys_under(client: redis.Redis, prefix: str) -> list[bytes]:
    """Return all keys that begin with `prefix`."""
    return list(client.scan_iter(match=f"{prefix}*", count=1000))


def remove_keys(client: redis.Redis, prefix: str, batch: int = 500) -> None:
    """Remove all keys that begin with `prefix`."""
    keys = keys_under(client, prefix)
    for start in range(0, len(keys), batch):
        client.unlink(*keys[start : start + batch])


def _client(address: Address) -> redis.Redis:
    place: dict[str, Any] = {"host": address.host, "port": address.port}
    if address.path:
        place = {"unix_socket_path": address.path}
    elif address.tls is not None:
        place |= {"ssl": True, **address.tls}
    return redis.Redis(
        **place,
        db=address.db,
        username=address.username,
        password=address.password,
        credential_provider=address.credential_provider,
        socket_timeout=SERVER_TIMEOUT_S,
        socket_connect_timeout=SERVER_TIMEOUT_S,
    )
