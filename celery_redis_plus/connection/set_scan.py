"""Reads a whole set of messages in short steps, while others change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection

#: Members that one command reads: some 0.2 ms of the server's time.
SCANNED_A_CALL = 500


def scan_tags(commands: CommandConnection, key: bytes) -> Iterator[tuple[str, float]]:
    """Yield the tags of a sorted set with their scores, in no order, each once.

    A tag that stands there all the time is always found, also where others come and go meanwhile, which ranks cannot promise:
    https://redis.io/docs/latest/commands/scan/ "Scan guarantees".

    Raises:
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    seen: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, found = commands.command("ZSCAN", key, cursor, "COUNT", SCANNED_A_CALL)
        for tag, score in zip(found[::2], found[1::2], strict=True):
            if tag not in seen:
                seen.add(tag)
                yield tag.decode(), float(score)
        if cursor == b"0":
            return
