"""The kombu transport: the only room that knows kombu.

Importing this package opens nothing and imports no socket, so that gevent and eventlet may patch later.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Transport"]


def __getattr__(name: str) -> Any:
    if name == "Transport":
        from celery_redis_plus.transport import framework_hooks
        from celery_redis_plus.transport.transport import Transport

        framework_hooks.install()
        return Transport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
