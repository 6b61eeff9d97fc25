"""Which host and process has unacked messages: by the session that holds them, which is what the server knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.processes import Processes
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR, Consumers

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has messages."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


def read_holders(commands: CommandConnection, keys: Keys, queue: str) -> dict[str, Holder]:
    """Return the process of each session that consumes `queue`, or may hold messages of any queue, by the session.

    A process tells its sessions with its heartbeats: that of a message which was claimed a moment ago may be missing, unless it
    is a consumer of the queue. Raises as `CommandConnection.call` does.
    """
    processes = Processes(commands, keys, delivery_limit=None, dead_letter_max=0).all()
    found = {session: Holder(record.host, record.pid) for record in processes for session in record.sessions}
    for consumer in Consumers(commands, keys).list(queue):
        found[consumer.id.partition(CONSUMER_ID_SEPARATOR)[0]] = Holder(consumer.host, consumer.pid)
    return found
