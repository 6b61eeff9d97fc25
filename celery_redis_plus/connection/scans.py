"""Reads a whole set of messages, or all keys of a pattern, in short steps, while others change them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection

#: Members that one command reads: some 0.2 ms of the server's time.
SCANNED_A_CALL = 500
#: Keys that one command looks at.
KEYS_A_SCAN = 1000


def escaped_glob(text: bytes) -> bytes:
    """Return `text` as a glob pattern that only it matches."""
    return re.sub(rb"([\\*?\[\]])", rb"\\\1", text)


def scan_keys(commands: CommandConnection, pattern: bytes) -> Iterator[list[bytes]]:
    """Yield the keys that match a glob pattern, a page at a time; some may come twice. Raises as `scan_tags`."""
    cursor = b"0"
    while True:
        cursor, page = commands.command("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_A_SCAN)
        yield page
        if cursor == b"0":
            return


def scan_tags(commands: CommandConnection, key: bytes) -> Iterator[tuple[str, float]]:
    """Yield the tags of a sorted set with their scores, in no order, each once.

    A tag that stands there all the time is always found, also where others come and go meanwhile, which ranks cannot promise:
    https://redis.io/docs/latest/commands/scan/ "Scan guarantees". A tag is ASCII: what is not was put there by somebody else, and
    is left out. `check` finds it.

    Raises:
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    seen: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, found = commands.command("ZSCAN", key, cursor, "COUNT", SCANNED_A_CALL)
        for tag, score in zip(found[::2], found[1::2], strict=True):
            if tag not in seen and tag.isascii():
                seen.add(tag)
                yield tag.decode(), float(score)
        if cursor == b"0":
            return
