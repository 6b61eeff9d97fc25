"""What the server says about a queue's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis

PLACES = ("queue", "delayed", "messages_index", "dead")


def places(client: redis.Redis, queue: str) -> dict[str, int]:
    """Return how many messages are in each place, e.g. `{"queue": 3, "messages_index": 1, …}`."""
    return {place: client.zcard(f"{place}:{{{queue}}}") for place in PLACES}


def empty(client: redis.Redis, queue: str) -> bool:
    """Whether the queue has no message in any place."""
    return not any(places(client, queue).values())


def check_places(client: redis.Redis, queue: str) -> None:
    """Check that every message's hash is in exactly one place, and every place's entry has a hash.

    Nothing may consume the queue meanwhile.
    """
    prefix = f"message:{{{queue}}}:"
    hashes = {key.decode()[len(prefix) :] for key in client.scan_iter(prefix + "*", count=5000)}
    listed: list[str] = []
    for place in PLACES:
        listed += [tag.decode() for tag in client.zrange(f"{place}:{{{queue}}}", 0, -1)]
    assert len(listed) == len(set(listed)), "a message is in two places"
    assert set(listed) == hashes
