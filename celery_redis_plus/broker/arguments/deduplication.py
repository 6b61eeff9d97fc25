"""Unique messages: of those with the same `x-deduplication-id` a queue keeps one.

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
#: For how long a message stands for its id: for the TTL, until it is claimed first, or until it is settled or dead.
SCOPES = ("ttl", "until-claimed", "until-acked")
#: Stands for the task id of a message that is no task; `quote` makes no such text.
NO_TASK = "*"
#: Milliseconds: a day; for the other scopes, which end by themselves, how long the server remembers at most.
DEFAULT_TTL_MS, LONGEST_TTL_MS = 86_400_000, 31_557_600_000


def standing_of(reply: bytes) -> tuple[str, str | None]:
    """Return the tag of the message that stands for an id, and its task's id, from what the publish script answers."""
    tag, _, task_id = reply.decode().partition(" ")
    return tag, None if task_id in ("", NO_TASK) else unquote(task_id)


def unique(headers: Mapping[str, Any], keys: QueueKeys) -> bytes | None:
    """Return what the publish script takes of a message's deduplication; None where it has no id.

    Celery's own retry of a task (`retries` in its headers) goes through, and stands for the id from then on: the message that it
    follows is acked right after.

    Raises:
        InvalidArgument: a header is not what it may be.
    """
    name = headers.get(ID)
    if name is None:
        return None
    scope, ttl = headers.get(SCOPE, "ttl"), headers.get(TTL, DEFAULT_TTL_MS)
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"header {ID!r} is {name!r}; allowed is a str that is not empty")
    if scope not in SCOPES:
        raise InvalidArgument(f"header {SCOPE!r} is {scope!r}; allowed: {', '.join(SCOPES)}")
    if not isinstance(ttl, int) or not 1 <= ttl <= LONGEST_TTL_MS:
        raise InvalidArgument(f"header {TTL!r} is {ttl!r}; allowed: a whole number of ms from 1 to {LONGEST_TTL_MS} (a year)")
    if headers.get("retries"):
        scope = "renew"
    task = headers.get("id")
    # A task's id may be any text.
    task_id = quote(task) if isinstance(task, str) and task else NO_TASK
    return f"{scope} {ttl} {task_id} ".encode() + _key(keys, name)


def standing_of_moved(headers: Mapping[str, Any], source: QueueKeys, target: QueueKeys) -> tuple[bytes, ...]:
    """Return what the transfer script takes of the deduplication of a message that goes from one queue to another."""
    # A Celery retry stands for the id as well as its first try did.
    stands_for = unique({**headers, "retries": 0}, source)
    return () if stands_for is None else (stands_for, _key(target, headers[ID]))


def _key(keys: QueueKeys, name: str) -> bytes:
    return keys.dedup + name.encode("utf-8", "surrogatepass")
