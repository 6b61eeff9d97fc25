"""Redis or Valkey as a trustworthy and fast Celery broker.

Importing this package makes kombu know the URL schemes `redisplus://` and `redispluss://` (and `valkey://`,
`valkeys://` where kombu does not define them). It opens nothing and loads neither Celery nor redis-py, so that
gevent and eventlet may still patch the standard library afterwards.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported before the function of the same name is defined, which it would take the place of afterwards.
import celery_redis_plus.stored_message  # noqa: F401
from celery_redis_plus.transport import url_schemes
from celery_redis_plus.version import __version__

if TYPE_CHECKING:
    from celery import Celery

    from celery_redis_plus.broker.arguments.retry_policy import RetryPolicy
    from celery_redis_plus.broker.queues.messages import MessageInfo
    from celery_redis_plus.connection.redis_url import redis_url
    from celery_redis_plus.integration.configure import configure_app
    from celery_redis_plus.integration.fencing import fence
    from celery_redis_plus.integration.limits import limit
    from celery_redis_plus.integration.messages import cancel, move, reschedule
    from celery_redis_plus.integration.retries import from_error, snooze
    from celery_redis_plus.integration.send_many import send_many
    from celery_redis_plus.integration.task_settlements import ack, nack, reject
    from celery_redis_plus.transport.api import Delivery, broadcast, counters, delivery, publish
    from celery_redis_plus.transport.browsing import BrowsedMessage, browse
    from celery_redis_plus.transport.transport import Transport

__all__ = [
    "BrowsedMessage",
    "Delivery",
    "RetryPolicy",
    "Transport",
    "__version__",
    "ack",
    "broadcast",
    "browse",
    "cancel",
    "configure_app",
    "counters",
    "delivery",
    "fence",
    "from_error",
    "limit",
    "message",
    "move",
    "nack",
    "publish",
    "redis_url",
    "reject",
    "reschedule",
    "send_many",
    "snooze",
]

_LAZY = {
    "BrowsedMessage": "celery_redis_plus.transport.browsing",
    "RetryPolicy": "celery_redis_plus.broker.arguments.retry_policy",
    "Delivery": "celery_redis_plus.transport.api",
    "broadcast": "celery_redis_plus.transport.api",
    "browse": "celery_redis_plus.transport.browsing",
    "delivery": "celery_redis_plus.transport.api",
    "publish": "celery_redis_plus.transport.api",
    "Transport": "celery_redis_plus.transport.transport",
    "ack": "celery_redis_plus.integration.task_settlements",
    "cancel": "celery_redis_plus.integration.messages",
    "configure_app": "celery_redis_plus.integration.configure",
    "counters": "celery_redis_plus.transport.api",
    "fence": "celery_redis_plus.integration.fencing",
    "from_error": "celery_redis_plus.integration.retries",
    "limit": "celery_redis_plus.integration.limits",
    "move": "celery_redis_plus.integration.messages",
    "nack": "celery_redis_plus.integration.task_settlements",
    "redis_url": "celery_redis_plus.connection.redis_url",
    "reject": "celery_redis_plus.integration.task_settlements",
    "reschedule": "celery_redis_plus.integration.messages",
    "send_many": "celery_redis_plus.integration.send_many",
    "snooze": "celery_redis_plus.integration.retries",
}

url_schemes.register()


def message(app: Celery, id: str, *, queue: str | None = None) -> MessageInfo | None:  # noqa: A002 - what users know it by
    """Return where a message stands, by its id or Celery's task id: see `integration.messages.message`."""
    from celery_redis_plus.integration import messages

    return messages.message(app, id, queue=queue)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
