"""The stored form of a message: one line of JSON, a line feed, then the body as it came.

No base64: a body is bytes, and Redis strings are bytes. A body over `LARGE_BODY` travels beside the scripts, in a field of
its own, because 64 MB through Lua block the server for 325 ms and a plain HSET for 39 ms (Redis 7.0.15, see DESIGN).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Bytes; over this a body goes round the scripts.
LARGE_BODY = 1_000_000
#: Bytes; Redis refuses a string over 512 MB (`proto-max-bulk-len`).
MAX_BODY = 512 * 1024 * 1024

BODY_SEPARATOR = b"\n"
#: Time limits that are `Exception`s, as module and class: they interrupt whoever reads a message, and tell nothing of it.
TIME_LIMITS: Final = (("billiard.exceptions", "SoftTimeLimitExceeded"),)
#: How the headers of `broker.arguments.deduplication` begin.
_DEDUPLICATION: Final = "x-deduplication-"
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
    message: Any = None
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
    #: Whether it names a limiter.
    limited: bool = False
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
    #: It is a Celery task whose retry was published: it is over, and only its ack is missing.
    retried: bool = False


class UnreadableMessageError(Exception):
    """A stored message cannot be read; `error` is what reading it has raised. It ends as a dead letter, or is passed over."""

    @property
    def error(self) -> BaseException:
        """What reading the message has raised."""
        return self.__cause__ or self


def unreadable(error: Exception) -> UnreadableMessageError:
    """Return the error that says that a message cannot be read, made of whatever reading it has raised: to be raised from it.

    A header may be of a type that an application has registered with kombu, and its decoder raises what it likes.

    Raises:
        Exception: `error`, where it tells nothing of the message: it is one of `TIME_LIMITS`, or memory is short.
    """
    if isinstance(error, MemoryError):
        raise error
    for module, name in TIME_LIMITS:
        # A class whose module is not loaded was raised by nobody.
        if isinstance(error, getattr(sys.modules.get(module), name, ())):
            raise error
    found = UnreadableMessageError(f"{type(error).__name__} in headers or properties")
    found.__cause__ = error
    return found


def checked_envelope(data: Any) -> dict[str, Any]:
    """Return a decoded envelope; headers, properties and `delivery_info` are dicts in it.

    Raises:
        TypeError, LookupError: it is no envelope of ours.
    """
    headers, properties = data["headers"], data["properties"]
    if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(properties["delivery_info"], dict)):
        raise TypeError("headers, properties and delivery_info have to be objects")
    envelope: dict[str, Any] = data
    return envelope


def read_envelope(line: bytes) -> dict[str, Any]:
    """Return an envelope as plain JSON has it: values that kombu's encoder has converted stay converted.

    Raises:
        UnreadableMessageError: it was damaged, or written by others.
    """
    try:
        return checked_envelope(json.loads(line))
    except Exception as error:
        raise unreadable(error) from error


def shown_envelope(line: bytes) -> dict[str, Any]:
    """Return an envelope as `read_envelope` does, or one with empty headers and properties where it cannot be read."""
    try:
        return read_envelope(line)
    except UnreadableMessageError:
        return {"headers": {}, "properties": {"delivery_info": {}}}


def stored_number(value: bytes | str | None) -> int:
    """Return a number that a message's hash, or another record, holds; 0 where somebody else has written none."""
    try:
        return int(float(value or 0))
    except (ValueError, OverflowError):
        return 0


def replayed(headers: Mapping[str, Any], properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the headers and properties with which a message is put back to work.

    A replay is meant to run: nothing of the life that is over ends it (`expiration`, Celery's `expires`), and it is no duplicate
    of the message that it was.
    """
    again = {name: value for name, value in headers.items() if not name.startswith(_DEDUPLICATION)}
    if again.get("expires") is not None:
        # Celery's own headers all stay: its workers read them without asking.
        again["expires"] = None
    return again, {name: value for name, value in properties.items() if name != "expiration"}


def split_payload(payload: bytes) -> tuple[bytes, bytes | None]:
    """Return (envelope, body) of a stored payload; body is None where it stands in a field of its own."""
    envelope, separator, body = payload.partition(BODY_SEPARATOR)
    return envelope, body if separator else None
