"""The exchanges over which Celery sends its events."""

from __future__ import annotations

from celery_redis_plus.integration import compat


def is_event_exchange(exchange: str) -> bool:
    """Return whether an app of this process calls its event exchange so (setting `event_exchange`)."""
    # The settings of an app that was not used yet are not loaded for this.
    return any(app.configured and app.conf.event_exchange == exchange for app in compat.active_apps())
