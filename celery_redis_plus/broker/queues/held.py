"""Reads who holds the unacked messages of a queue, and since when, in short steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_redis_plus.broker.queue_failures import of_our_keys
from celery_redis_plus.connection.scans import scan_tags
from celery_redis_plus.keys import encode_name
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Messages of one pipeline.
PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Held:
    """An unacked message.

    Attributes:
        tag: its id.
        session: the connection that holds it, as the server names it.
        claimed_ms: since when, in ms since the epoch; None where an older version claimed it.
    """

    tag: str
    session: str
    claimed_ms: int | None


def read_held(commands: CommandConnection, keys: Keys, queue: str) -> Iterator[tuple[int, list[Held]]]:
    """Yield how many unacked messages were looked at for a page, and those that are still held.

    All that are held from the beginning to the end are found, see `scan_tags`. Raises as `CommandConnection.call` does.
    """
    of = keys.queue(queue)
    tags = [tag for tag, _ in scan_tags(commands, of.index)]
    for at in range(0, len(tags), PAGE):
        page = tags[at : at + PAGE]
        looks = [("HMGET", of.message + encode_name(tag), "owner", "claimed") for tag in page]
        found = zip(page, of_our_keys(commands.pipeline(looks)), strict=True)
        held = [(tag, *fields) for tag, fields in found if fields is not None and fields[0] is not None]
        yield len(page), [Held(tag, owner.decode("utf-8", "replace"), stored_number(ms) or None) for tag, owner, ms in held]
