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
#: What becomes of a waiting message with the same id, where another one comes: it stays, or that one takes its place. With
#: `replace-only` that one is stored only there. Only a message of the same task is replaced, or of none.
CONFLICT = "x-deduplication-conflict"
KEEP, REPLACE, REPLACE_ONLY = CONFLICTS = ("keep", "replace", "replace-only")
#: Milliseconds: how long such a message waits, each time anew, and how long at most since the first of them.
DELAY, MAX_WAIT = "x-deduplication-delay", "x-deduplication-max-wait"
#: How often a task was put off (`integration/retries.py:snooze`).
SNOOZES = "x-snoozes"
#: The tag of the message that a retry follows.
RETRY_OF = "x-retry-of"
#: In place of the task id of a message that is not a task; `quote` never returns this text.
NO_TASK = "*"
#: Milliseconds: a day; for the other scopes, which end earlier, the longest that the server remembers an id.
DEFAULT_TTL_MS, LONGEST_TTL_MS = 86_400_000, 31_557_600_000


def read_duplicate(reply: bytes) -> tuple[str, str | None]:
    """Return the tag of the message that this one duplicates, and its task's id, from the publish script's answer.

    Both are empty where none waits that a `replace-only` might replace.
    """
    tag, _, task_id = reply.decode().partition(" ")
    return tag, None if task_id == NO_TASK else unquote(task_id)


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
    _check_ms(TTL, ttl, 1)
    number = _retries(headers)
    if number:
        if scope == UNTIL_STARTED:
            return None
        scope = f"renew/{number}"
        of = headers.get(RETRY_OF)
        if isinstance(of, str) and of and " " not in of:
            scope += f"/{of}"
    else:
        if scope == UNTIL_STARTED:
            scope = "until-claimed"
        scope = _replacing(headers) + scope
    task = headers.get("id")
    # A task's id may be any text, also one that is no UTF-8: JSON can write a surrogate of its own.
    task_id = quote(task, errors="backslashreplace") if isinstance(task, str) and task else NO_TASK
    return f"{scope} {ttl} {task_id} ".encode() + _key(keys, name)


def only_asks(deduplication: bytes) -> bool:
    """Return whether a message with this argument only asks for one that stands: it neither replaces one nor is a retry."""
    return deduplication.partition(b" ")[0].decode() in SCOPES


def delay_of(headers: Mapping[str, Any]) -> str:
    """Return how long a message with a deduplication id waits for newer ones, as a publisher's eta (`+ms`); empty: not at all.

    A retry does not: its own delay is what it waits for.

    Raises:
        InvalidArgument: the header has a value that is not allowed.
    """
    delay = headers.get(DELAY)
    if delay is None or _retries(headers):
        return ""
    _check_ms(DELAY, delay, 0)
    return f"+{delay}" if delay else ""


def _replacing(headers: Mapping[str, Any]) -> str:
    """Return what stands before the scope of a message that takes the place of another one (`lua/include/replacement.lua`)."""
    conflict, max_wait = headers.get(CONFLICT, KEEP), headers.get(MAX_WAIT)
    if conflict not in CONFLICTS:
        raise InvalidArgument(f"header {CONFLICT!r} is {conflict!r:.100}; allowed: {', '.join(CONFLICTS)}")
    if conflict == KEEP:
        return ""
    if max_wait is not None:
        _check_ms(MAX_WAIT, max_wait, 1)
    return f"replace/{int(conflict == REPLACE_ONLY)}/{'' if max_wait is None else max_wait}/"


def _check_ms(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LONGEST_TTL_MS:
        raise InvalidArgument(
            f"header {name!r} is {value!r:.100}; allowed: a whole number of ms from {least} to {LONGEST_TTL_MS} (a year)"
        )


def _retries(headers: Mapping[str, Any]) -> int:
    return _number(headers.get("retries")) + _number(headers.get(SNOOZES))


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
