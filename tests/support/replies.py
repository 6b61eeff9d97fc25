"""Answers of a redis-py client whose replies are bytes; by redis-py's own types they may be text, or pairs with scores, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import redis


def sorted_set_members(client: redis.Redis, key: bytes) -> list[bytes]:
    """Return all members in their order."""
    return cast("list[bytes]", client.zrange(key, 0, -1))


def list_items(client: redis.Redis, key: bytes | str) -> list[bytes]:
    """Return all items of a list."""
    return cast("list[bytes]", client.lrange(key, 0, -1))


def hash_fields(client: redis.Redis, key: bytes) -> dict[bytes, bytes]:
    """Return field -> value."""
    return cast("dict[bytes, bytes]", client.hgetall(key))


def stream_entries(client: redis.Redis, key: bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return (id, fields) of all entries in their order."""
    return cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(key))
