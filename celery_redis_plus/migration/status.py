"""Tells what is left where in a migration: in kombu's lists, with its workers, and here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.broker.queues.overview import read_overviews
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.migration.conversion import eta_ms_of
from celery_redis_plus.migration.report import UNKNOWN

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.migration.kombu_broker import KombuBroker


@dataclass(slots=True)
class MigrationStatus:
    """One queue in both transports."""

    queue: str
    #: kombu's: step of the priority -> messages in its list.
    waiting: dict[int, int] = field(default_factory=dict)
    #: Messages that a migration to another server has taken from kombu, and that are still there.
    moving: int = 0
    #: kombu's: messages that workers have, or had when they died; how many of them are tasks with a later eta.
    unacked: int = 0
    scheduled: int = 0
    #: Seconds since the oldest of them was delivered; and until the last of those tasks is due.
    oldest_unacked_s: float | None = None
    last_due_s: float | None = None
    #: Here; None: there is no such queue.
    here_ready: int | None = None
    here_delayed: int | None = None
    here_unacked: int | None = None

    @property
    def left(self) -> int:
        """Messages that kombu has."""
        return sum(self.waiting.values()) + self.moving + self.unacked

    def note_unacked(self, age_s: float, due_in_s: float | None) -> None:
        """Count a message that a worker has; `due_in_s` is set for a task with a later eta."""
        self.unacked += 1
        self.oldest_unacked_s = max(age_s, self.oldest_unacked_s or 0.0)
        if due_in_s is not None:
            self.scheduled += 1
            self.last_due_s = max(due_in_s, self.last_due_s or 0.0)


def read_status(commands: CommandConnection, keys: Keys, kombu: KombuBroker, names: Sequence[str]) -> list[MigrationStatus]:
    """Return how the queues `names` stand, and the unacked messages of others. Raises as `CommandConnection.call` does."""
    found = {name: MigrationStatus(name, kombu.lengths(name), kombu.moving(name)) for name in names}
    now_s = server_ms(commands) / 1000
    for queue, since_s, eta_ms in _unacked(kombu):
        one = found.setdefault(queue, MigrationStatus(queue))
        due_in_s = None if eta_ms is None else eta_ms / 1000 - now_s
        one.note_unacked(max(0.0, now_s - since_s), due_in_s if due_in_s and due_in_s > 0 else None)
    for overview in read_overviews(commands, keys, list(found)):
        one = found[overview.queue]
        one.here_ready, one.here_delayed, one.here_unacked = overview.ready, overview.delayed, overview.unacked
    return [one for _, one in sorted(found.items())]


def _unacked(kombu: KombuBroker) -> Iterator[tuple[str, float, int | None]]:
    """Yield queue, time of delivery and eta of each message that kombu's workers have."""
    for page in kombu.unacked(float("inf")):
        for one in page:
            yield (kombu.queues_of_unacked(one) or [UNKNOWN])[0], one.since_s, _eta_ms(one.text)


def _eta_ms(text: bytes) -> int | None:
    try:
        return eta_ms_of(json.loads(text)[0]["headers"].get("eta"))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
