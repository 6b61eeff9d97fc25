"""The names of kombu's internals that this package uses (kombu 5.6 and 5.7).

Public and documented names are imported where they are used. Everything else is declared here: a version without a name
switches off what needs the name, with one warning. Nothing here imports kombu at once: see `aliases`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus.internals import Internal

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.persistent_connection import PersistentConnection

#: The dict of URL schemes and transports, in the module `kombu.transport`.
TRANSPORT_ALIASES = Internal(
    "kombu.transport",
    "TRANSPORT_ALIASES",
    "the URL schemes redisplus://, redispluss://, valkey:// and valkeys://; name the transport by its import path, "
    "celery_redis_plus.transport:Transport",
)
#: The function that takes a URL apart, in the module `kombu.connection`.
PARSE_URL = Internal("kombu.connection", "parse_url", "transport options in the broker URL; use broker_transport_options")
#: What a loop calls with its next turn.
HUB_READY = Internal(
    "kombu.asynchronous.hub:Hub",
    "_ready",
    "waking a worker's loop for what a delivery left to it: early acks may leave a second late",
)
#: The decoded body of a message.
MESSAGE_DECODED = Internal(
    "kombu.message:Message",
    "_decoded_cache",
    "knowing tasks of Celery's message protocol 1 after a connection loss: they may run twice",
)


def aliases() -> dict[str, str]:
    """Return kombu's table of URL schemes, which may be changed; an empty dict where there is none."""
    from kombu import transport

    table: dict[str, str] = TRANSPORT_ALIASES.of(transport, {})
    return table


def decoded_body(message: Any) -> Any:
    """Return the body of a message where it has been decoded already; nothing is decoded for this."""
    return MESSAGE_DECODED.of(message)


def batch_publish_error(text: str) -> Exception:
    """Return kombu's error for a batch of which something is not published; kombu 5.6 has neither batches nor the error."""
    return batch_publish_error_class()(text)


def batch_publish_error_class() -> type[Exception]:
    """Return the class of kombu's error for a batch; where kombu has none, that of its errors of connections."""
    from kombu import exceptions

    kind: type[Exception] = getattr(exceptions, "BatchPublishError", exceptions.OperationalError)
    return kind


class SocketOwner:
    """Celery finds the sockets that it bounds at shutdown by `channel.client.connection._sock` (`celery/utils/threads.py`)."""

    def __init__(self, commands: PersistentConnection) -> None:
        self._commands = commands

    @property
    def connection(self) -> Any:
        """redis-py's connection, which has the socket."""
        return self._commands.connection


class RedisClient(SocketOwner):
    """What programs take for redis-py's client, which kombu's own Redis transport has: they ask it for the length of a queue."""

    def __init__(self, commands: PersistentConnection, queues: Queues) -> None:
        """Show the socket of `commands`, and what `queues` says of a queue."""
        super().__init__(commands)
        self._queues = queues

    def llen(self, queue: str) -> int:
        """Return how many messages of a queue need a worker: ready, delayed and unacked ones; 0 where there is no such queue."""
        sizes = self._queues.sizes(queue)
        return sizes.ready + sizes.delayed + sizes.unacked
