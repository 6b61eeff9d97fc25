"""The kombu transport: the only room that knows kombu.

Importing this package opens nothing and imports no socket, so that gevent and eventlet may patch later.
"""

from __future__ import annotations

from typing import Any

from celery_redis_plus.installation import warn_of_foreign_distribution

__all__ = ["Transport"]

# Here, as this module is imported first even where the other project has replaced the package's `__init__.py`.
warn_of_foreign_distribution()


def __getattr__(name: str) -> Any:
    if name == "Transport":
        from celery_redis_plus.transport import framework_hooks
        from celery_redis_plus.transport.transport import Transport

        framework_hooks.install()
        return Transport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
