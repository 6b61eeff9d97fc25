"""The stored form of a message: one line of JSON, a line feed, then the body as it came.

No base64: a body is bytes, and Redis strings are bytes. A body over `LARGE_BODY` travels beside the scripts, in a field of
its own, because 64 MB through Lua block the server for 325 ms and a plain HSET for 39 ms (Redis 7.0.15, see DESIGN).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Bytes; over this a body goes round the scripts.
LARGE_BODY = 1_000_000
#: Bytes; Redis refuses a string over 512 MB (`proto-max-bulk-len`).
MAX_BODY = 512 * 1024 * 1024

BODY_SEPARATOR = b"\n"
#: The place of the time in a tag, ms since the epoch by the server's clock, in hexadecimal (`lua/include/new_tag.lua`).
TAG_TIME = slice(0, 11)
#: The place of the character in a tag that says what its queue has besides (`lua/include/tag_flags.lua`); the queue's id follows.
TAG_FLAG = slice(19, 20)


@dataclass(slots=True)
class Outgoing:
    """A message on its way to one queue or more."""

    #: One line of JSON: headers and properties.
    envelope: bytes
    body: bytes
    #: 0-255, 255 first; already ranked (see `broker.priority`): the number the score is built from, 0 first.
    rank: int
    #: When the message becomes deliverable, ms since the epoch; `+ms` counts from the server's now; 0 is now.
    eta: int | str = 0
    #: When the message expires, ms since the epoch; `+ms` counts from when it becomes deliverable; both may stand together
    #: (`ms+ms`: the earlier); empty is never, unless its queue says so. A `t` behind it: it is a Celery task, and a worker
    #: revokes it then.
    life: str = ""
    #: What a typed queue checks: the message as the publisher's own layer has it.
    source_message: Any = None
    #: The publish script's deduplication argument (`broker.arguments.deduplication`).
    deduplication: bytes | None = None
    #: Makes the description for its lifecycle events; called only where the queue's events are written.
    describe: Callable[[], str] | None = None
    #: Id of the record that the message depends on (its priority's cap, the sweep of messages that expire): the scripts store
    #: nothing under another one, and `prepare_again` makes the message anew. Empty: it depends on none.
    queue_id: bytes = b""
    prepare_again: Callable[[], Outgoing] | None = None
    #: The bindings that it was routed by, their key and version: the scripts store nothing where they have another version.
    routed_by: tuple[bytes, int] | None = None
    #: Whether `lua/publish_ordinary.lua` takes its first try: neither the message nor its queue has anything that few have.
    ordinary: bool = False


@dataclass(slots=True)
class Claimed:
    """A message that this process has taken and not yet settled."""

    tag: str
    queue: str
    #: The count of claims, which fences requeue, release and heartbeat.
    claim: int
    #: How often it failed: its holder died, or it was rejected with requeue.
    failures: int
    redelivered: bool
    envelope: bytes
    #: None: the body stands in a field of its own and has to be fetched.
    body: bytes | None
    #: It is a Celery task that has expired, by the server's clock: its worker revokes it.
    expired: bool = False


def split_payload(payload: bytes) -> tuple[bytes, bytes | None]:
    """Return (envelope, body) of a stored payload; body is None where it stands in a field of its own."""
    envelope, separator, body = payload.partition(BODY_SEPARATOR)
    return envelope, body if separator else None
