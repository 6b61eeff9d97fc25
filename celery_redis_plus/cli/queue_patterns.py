"""The queues that a command acts on: named, or by patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from celery_redis_plus.errors import QueueNotFound

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin

F = TypeVar("F", bound=Callable[..., Any])

#: Names that a question lists.
MOST_NAMED: Final = 5
queues_argument: Callable[[F], F] = click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")


def chosen_queues(admin: BrokerAdmin, patterns: Sequence[str]) -> list[str]:
    """Return the names of the queues that names and patterns choose, without those that Celery has for itself unless named.

    Raises:
        QueueNotFound: there is no queue of a name, or none that a pattern matches.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        names = admin.queues(pattern, internal=False)
        if not names:
            raise QueueNotFound(f"no queue has a name that matches {pattern!r}")
        found.update(dict.fromkeys(names))
    return list(found)


def named(queues: Sequence[str]) -> str:
    """Return the names of queues for a question: `queue 'a'`, `3 queues ('a', 'b', 'c')`."""
    if len(queues) == 1:
        return f"queue {queues[0]!r}"
    more = ", …" if len(queues) > MOST_NAMED else ""
    return f"{len(queues):,} queues ({', '.join(map(repr, queues[:MOST_NAMED]))}{more})"
