"""Deduplication: of the messages with the same `x-deduplication-id` a queue keeps one.

The header's name is that of RabbitMQ's deduplication plugins. What is checked, and when: `lua/include/deduplication.lua`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from celery_redis_plus.keys import QueueKeys

ID, TTL, SCOPE = "x-deduplication-id", "x-deduplication-ttl", "x-deduplication-scope"
#: How long a message blocks duplicates: for the TTL, until its first claim, or until it is settled or dead. `until-started` is
#: `until-claimed`, but a retry of the task does not begin anew.
TTL_SCOPE, UNTIL_STARTED = "ttl", "until-started"
SCOPES = (TTL_SCOPE, "until-claimed", UNTIL_STARTED, "until-acked")
#: How often a task was put off (`integration/retries.py:snooze`).
SNOOZES = "x-snoozes"
#: The tag of the message that a retry follows.
RETRY_OF = "x-retry-of"
#: In place of the task id of a message that is not a task; `quote` never returns this text.
NO_TASK = "*"
#: Milliseconds: a day; for the other scopes, which end earlier, the longest that the server remembers an id.
DEFAULT_TTL_MS, LONGEST_TTL_MS = 86_400_000, 31_557_600_000


def read_duplicate(reply: bytes) -> tuple[str, str | None]:
    """Return the tag of the message that this one duplicates, and its task's id, from the publish script's answer."""
    tag, _, task_id = reply.decode().partition(" ")
    return tag, None if task_id in ("", NO_TASK) else unquote(task_id)


def deduplication_of(headers: Mapping[str, Any], keys: QueueKeys) -> bytes | None:
    """Return the publish script's deduplication argument for a message; None where it has no deduplication id.

    Celery's own retry of a task (`retries` in its headers) is stored, and takes over the id: the message that it follows is
    acked right after. The same retry of the same task is a duplicate: the task ran again, because its worker had died behind it.

    Raises:
        InvalidArgument: a header has a value that is not allowed.
    """
    name = headers.get(ID)
    if name is None:
        return None
    scope, ttl = headers.get(SCOPE, TTL_SCOPE), headers.get(TTL, DEFAULT_TTL_MS)
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"header {ID!r} is {name!r}; allowed is a str that is not empty")
    if scope not in SCOPES:
        raise InvalidArgument(f"header {SCOPE!r} is {scope!r}; allowed: {', '.join(SCOPES)}")
    if not isinstance(ttl, int) or not 1 <= ttl <= LONGEST_TTL_MS:
        raise InvalidArgument(f"header {TTL!r} is {ttl!r}; allowed: a whole number of ms from 1 to {LONGEST_TTL_MS} (a year)")
    number = _number(headers.get("retries")) + _number(headers.get(SNOOZES))
    if number:
        if scope == UNTIL_STARTED:
            return None
        scope = f"renew/{number}"
        of = headers.get(RETRY_OF)
        if isinstance(of, str) and of and " " not in of:
            scope += f"/{of}"
    elif scope == UNTIL_STARTED:
        scope = "until-claimed"
    task = headers.get("id")
    # A task's id may be any text.
    task_id = quote(task) if isinstance(task, str) and task else NO_TASK
    return f"{scope} {ttl} {task_id} ".encode() + _key(keys, name)


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def moved_deduplication(headers: Mapping[str, Any], source: QueueKeys, target: QueueKeys) -> tuple[bytes, ...]:
    """Return the move script's deduplication arguments for a message that goes from one queue to another."""
    try:
        # A Celery retry has the id of its first try.
        deduplication = deduplication_of({**headers, "retries": 0, SNOOZES: 0}, source)
    except InvalidArgument:
        # No publisher of ours has stored that, so there is no key that stands for it.
        return ()
    return () if deduplication is None else (deduplication, _key(target, headers[ID]))


def _key(keys: QueueKeys, name: str) -> bytes:
    # The last `}` of the key ends the queue's name: otherwise the id `x}:y` in the queue `a` would be `y` in the queue `a}:x`.
    # No encoded text has the byte FF.
    return keys.dedup + name.encode("utf-8", "surrogatepass").replace(b"}", b"\xff")
