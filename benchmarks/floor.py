"""The least that a transport under kombu's virtual layer can do: what "floor" means in the report.

Publish is one LPUSH on a held connection, a claim one LPOP of up to 100 messages (RPOP end, so
first in first out), an ack one ZREM. It loses messages when a process dies, knows no priorities,
waits by sleeping, and is here only to show how much of a figure no transport could save.
"""

from __future__ import annotations

from collections import defaultdict, deque
from json import dumps, loads
from queue import Empty
from typing import Any

from kombu.transport import virtual
from redis import Redis

CLAIM_LIMIT = 100


class QoS(virtual.QoS):
    """Acks at the server, one at a time, as a transport without a buffer would."""

    def ack(self, delivery_tag: str) -> None:
        """One ZREM."""
        self.channel.call("ZREM", "floor:unacked", delivery_tag)
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    """One held connection; a buffer of claimed messages per queue."""

    QoS = QoS
    do_restore = False
    body_encoding = None
    supports_fanout = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        client = connection.client
        database = int((client.virtual_host or "0").strip("/") or 0)
        pool = Redis(host=client.hostname, port=client.port, db=database, protocol=2).connection_pool
        self._commands = pool.get_connection()
        self._claimed: defaultdict[str, deque[bytes]] = defaultdict(deque)

    def call(self, *command: Any) -> Any:
        """One command, one reply."""
        self._commands.send_command(*command)
        return self._commands.read_response()

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self.call("LPUSH", queue, dumps(message))

    def _get(self, queue: str, **_: Any) -> dict[str, Any]:
        claimed = self._claimed[queue]
        if not claimed:
            credit = self.qos.can_consume_max_estimate() or CLAIM_LIMIT
            claimed.extend(self.call("RPOP", queue, min(credit, CLAIM_LIMIT)) or ())
            if not claimed:
                raise Empty
        message: dict[str, Any] = loads(claimed.popleft())
        return message

    def _size(self, queue: str) -> int:
        return int(self.call("LLEN", queue))

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        self.call("DEL", queue)
        return size

    def close(self) -> None:
        """Close the held connection too."""
        super().close()
        self._commands.disconnect()


class Transport(virtual.Transport):
    """``floor://host:port/db``."""

    Channel = Channel
    default_port = 6379
    polling_interval = 0.01
    driver_type = "floor"
    driver_name = "floor"

    def driver_version(self) -> str:
        """It has none."""
        return "0"
