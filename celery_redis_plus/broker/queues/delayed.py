"""Lists the delayed messages of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.keys import decode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import split_payload

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Messages that one script call reads.
DELAYED_PAGE = 100
#: Bytes of payload after which a script call reads no further message, and the whole listing ends.
DELAYED_PAGE_BYTES, LISTING_BYTES = 1_000_000, 16_000_000


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message that the broker holds until its time."""

    tag: str
    queue: str
    #: When it becomes ready, ms since the epoch.
    eta_ms: int
    envelope: bytes
    #: None where it stands in a field of its own, because it is large; it is not fetched.
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The delayed messages of one queue that are due next."""

    queue: str
    #: How many the queue has in all.
    total: int
    messages: list[Delayed]


def list_delayed(commands: CommandConnection, keys: Keys, queue: str, limit: int) -> Listing:
    """Return up to `limit` delayed messages of `queue`, the next due first.

    Fewer where their payloads reach `LISTING_BYTES`. What is promoted or published while this reads may be missing.
    Raises as `CommandConnection.call` does.
    """
    of = keys.queue(queue)
    found: dict[bytes, Delayed] = {}
    total, rank, size = 0, 0, 0
    while rank < limit and size < LISTING_BYTES:
        total, checked, *fields = commands.call(
            script("list_messages"), [of.delayed, of.message], rank, min(DELAYED_PAGE, limit - rank), DELAYED_PAGE_BYTES
        )
        for tag, eta, payload in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            envelope, body = split_payload(payload)
            found[tag] = Delayed(decode_name(tag), queue, int(float(eta)), envelope, body)
            size += len(payload)
        if not checked:
            break
        rank += checked
    return Listing(queue, total, list(found.values()))
