"""How soon consumers work again at a server that has just become the primary."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis


def seconds_until_consumers_are_back(client: Callable[[], redis.Redis], prefix: str, at: float, timeout_s: float) -> float:
    """Return how many seconds after a moment of the wall clock a consumer takes a message at the primary, or waits there for one.

    Args:
        client: makes a client of the primary.
        prefix: of the broker's keys; the queue is `celery`.
        at: the moment. timeout_s: the longest time to wait.
    """
    record = f"{prefix}meta:{{celery}}"
    before: list[bytes | None] = []

    def is_back() -> float | None:
        with client() as primary:
            delivered = primary.hget(record, "delivered")
            waits = "celery-redis-plus:wakeups" in {one["name"] for one in primary.client_list()}
        before.append(delivered)
        return time.time() - at if waits or delivered != before[0] else None

    return wait_until(is_back, timeout_s, interval_s=0.02) or 0.0
