"""Has the events of a worker itself, such as Celery's heartbeat, try a lost broker once, not for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.events import EventDispatcher

from celery_redis_plus.integration.patching import wrap

#: kombu's retry policy: one new connection, at once.
ONE_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


def bound_worker_events() -> None:
    """Have a worker's own events wait for one attempt to connect; idempotent.

    Celery sends them from the worker's loop, with no limit of retries (Celery 5.7, `Heart._send`). While the broker is away, the
    loop would stand still in one of them: no time limit would hold, and no signal would end the worker. Celery keeps the failed
    ones, and sends them after the next connection.
    """
    wrap(EventDispatcher, "send", _send)


def _send(send: Callable[..., Any], dispatcher: EventDispatcher, type: str, *args: Any, **fields: Any) -> Any:  # noqa: A002 - Celery's
    if type.startswith("worker-") and fields.get("retry"):
        fields.setdefault("retry_policy", ONE_RETRY)
    return send(dispatcher, type, *args, **fields)
