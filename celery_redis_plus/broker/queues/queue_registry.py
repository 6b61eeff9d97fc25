"""The broker's lists of queues: which last, which vanish, which are gone, which are swept, and which have events."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Seconds for which a transient queue that vanished is remembered, so that a late reply does not revive it.
TOMBSTONE_S = 86_400
#: Such queues that are remembered at most; about 120 bytes each.
MAX_TOMBSTONES = 100_000
#: Milliseconds after which a transient queue that was found alive is looked at again.
ALIVE_AGAIN_MS = 120_000


class Absence(Enum):
    """Why a queue has no record, as the list of queues tells."""

    #: It is not listed: it was deleted, if the database was not flushed.
    UNLISTED = "unlisted"
    #: It was transient, and was deleted.
    DELETED = "deleted"
    #: It was transient, and was not used in time.
    EXPIRED = "expired"
    #: It is listed as a lasting one: its record was evicted.
    EVICTED = "evicted"


class QueueRegistry:
    """The lists over one connection."""

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        """Use `commands`."""
        self._commands = commands
        self._keys = keys
        self._failures = KeyFailures(logger, "has a record that cannot be read")

    def enlist(self, name: str, ttl: int | str) -> None:
        """Enter a queue into the list of queues; `ttl` is its life while unused, in ms, '' for a lasting one."""
        self._commands.call(script("list_queue"), [self._keys.queues], encode_name(name), ttl)

    def lasting(self) -> list[str]:
        """Return the names of the queues that last."""
        return [decode_name(name) for name in self._commands.command("ZRANGE", self._keys.queues, "+inf", "+inf", "BYSCORE")]

    def expiring(self) -> list[str]:
        """Return the names of the queues that vanish when they are not used for a while."""
        return [decode_name(name) for name in self._commands.command("ZRANGE", self._keys.queues, 0, "(+inf", "BYSCORE")]

    def overdue(self, limit: int = 100) -> list[str]:
        """Return transient queues that were not used in time, on the server's clock, and have no record any more.

        A queue that is used keeps its record without moving its place in the list, which would cost a command more each time:
        so one that turns out to be alive is only looked at again after a while.
        """
        names = [decode_name(raw) for raw in self._commands.call(script("list_overdue"), [self._keys.queues], limit)]
        gone = set(self.without_record(names))
        for name in names:
            if name not in gone:
                self.look_later(name)
        return [name for name in names if name in gone]

    def look_later(self, name: str) -> None:
        """Have `overdue` return a transient queue after a while only."""
        self.enlist(name, ALIVE_AGAIN_MS)

    def bury(self, name: str) -> None:
        """Remember a vanished transient queue, unless it has come back meanwhile."""
        if self.without_record([name]):
            self.remember([name], expired=True)

    def remember(self, names: Iterable[str], *, expired: bool = False) -> None:
        """Leave tombstones for `TOMBSTONE_S`, `MAX_TOMBSTONES` in all."""
        encoded = [encode_name(name) for name in names]
        limits = (TOMBSTONE_S * 1000, MAX_TOMBSTONES, int(expired))
        self._commands.call(script("tombstone_queues"), [self._keys.queues], *limits, *encoded)

    def missing(self, names: Sequence[str]) -> dict[str, Absence]:
        """Return the queues without a record, and why they have none. One of another type is logged, and not missing."""
        gone = self.without_record(names)
        if not gone:
            return {}
        listed = self._commands.ask([("ZSCORE", self._keys.queues, encode_name(name)) for name in gone])
        return {name: _absence(score) for name, score in zip(gone, listed, strict=True)}

    def without_record(self, names: Sequence[str]) -> list[str]:
        """Return those of the queues that have no record, in one round trip."""
        return self._without("id", names)

    def without_event_log(self, names: Sequence[str]) -> list[str]:
        """Return those of the queues whose events are not written: deleted ones, too. In one round trip."""
        return self._without("event_log", names)

    def _without(self, field: str, names: Sequence[str]) -> list[str]:
        there = self._look([("HEXISTS", self._keys.queue(name).meta, field) for name in names], names)
        return [name for name, exists in zip(names, there, strict=True) if exists == 0]

    def _look(self, looks: Sequence[tuple[Argument, ...]], names: Sequence[str]) -> list[int | None]:
        """Ask one thing of each queue in one round trip; return the answers.

        None, and a line in the log, for a queue whose key is of another type.
        """
        found: list[int | None] = []
        for name, reply in zip(names, self._commands.pipeline(looks) if looks else (), strict=True):
            if isinstance(reply, Exception):
                self._failures.contain(reply, name)
            found.append(None if isinstance(reply, Exception) else reply)
        return found

    def always_swept(self) -> list[str]:
        """Return the queues that are swept although they may have no consumer."""
        return [decode_name(name) for name in self._commands.command("SMEMBERS", self._keys.always_swept)]

    def ensure_swept(self, name: str) -> None:
        """Have the queue swept even while it has no consumer: messages expire there, or go on to a dead-letter exchange."""
        self._commands.call(script("add_to_queue_set"), [self._keys.always_swept], encode_name(name))
        self._commands.call(script("notify"), [self._keys.sweep_wakeup], "")

    def remove_always_swept(self, names: Iterable[str]) -> None:
        """Sweep these queues no longer on that ground."""
        self._commands.command("SREM", self._keys.always_swept, *[encode_name(name) for name in names])

    def event_logged(self) -> list[str]:
        """Return the queues that have lifecycle events, also those that write none any more."""
        return [decode_name(name) for name in self._commands.command("SMEMBERS", self._keys.event_logs)]


def _absence(score: bytes | None) -> Absence:
    """Return why a queue with this place in the list of queues, None for none, has no record."""
    if score is None:
        return Absence.UNLISTED
    place = float(score)
    if place == math.inf:
        return Absence.EVICTED
    # The tombstone of a queue that expired ends with a half (lua/tombstone_queues.lua).
    return Absence.DELETED if place < 0 and not place % 1 else Absence.EXPIRED
