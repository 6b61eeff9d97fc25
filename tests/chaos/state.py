"""What the server says about a queue's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.keys import Keys
from tests.support.invariants import violations

if TYPE_CHECKING:
    import redis

PLACES = ("queue", "delayed", "messages_index", "dead")


def places(client: redis.Redis, queue: str) -> dict[str, int]:
    """Return how many messages are in each place, e.g. `{"queue": 3, "messages_index": 1, …}`."""
    return {place: client.zcard(f"{place}:{{{queue}}}") for place in PLACES}


def empty(client: redis.Redis, queue: str) -> bool:
    """Whether the queue has no message in any place."""
    return not any(places(client, queue).values())


def check_invariants(client: redis.Redis) -> None:
    """Check the design's invariants over the whole database. Nothing may use it meanwhile."""
    assert violations(client, Keys()) == []
