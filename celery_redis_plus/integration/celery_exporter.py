"""Queue lengths for celery-exporter (https://github.com/danihodovic/celery-exporter), which knows brokers by their scheme.

Its exporter (0.11 and 0.12) asks `connection.info()` for the transport's name, and reads the lengths of queues only where that is
a name of kombu's own transports: `redis` for `channel.client.llen(queue)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kombu import Connection

from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.transport.transport import Transport

#: The exporter's module: its distribution has no package of its own.
EXPORTER = "src.exporter"


class NamedRedis(Connection):
    """A connection that calls our transport `redis`."""

    def info(self) -> dict[str, Any]:
        """Return what kombu tells of a connection, with that name."""
        found: dict[str, Any] = super().info()
        return {**found, "transport": Transport.driver_type} if isinstance(self.transport, Transport) else found


def install_queue_lengths() -> None:
    """Have celery-exporter read the lengths of our queues; idempotent. Another module of this name is left alone."""
    module = sys.modules[EXPORTER]
    if hasattr(getattr(module, "Exporter", None), "track_queue_metrics") and hasattr(module, "redis_queue_length"):
        wrap(module.Exporter, "track_queue_metrics", _track)


def _track(track: Callable[..., Any], exporter: Any, *args: Any, **kwargs: Any) -> Any:
    exporter.app.amqp.Connection = NamedRedis
    return track(exporter, *args, **kwargs)
