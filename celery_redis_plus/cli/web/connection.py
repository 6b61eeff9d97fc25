"""The one connection to the broker that all pages share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus.connection.forks import lock_of

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin


class SharedConnection:
    """Connects when it is first needed, and again where the connection was lost. Threads may use it together.

    Args:
        connect: opens it; called again where it failed.
    """

    def __init__(self, connect: Callable[[], BrokerAdmin]) -> None:
        self._connect = connect
        self._lock = lock_of(self)
        self._admin: BrokerAdmin | None = None

    def admin(self) -> BrokerAdmin:
        """Return it. Raises as `connect` does."""
        with self._lock:
            if self._admin is None:
                self._admin = self._connect()
            return self._admin

    def close(self) -> None:
        """Close it."""
        with self._lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
