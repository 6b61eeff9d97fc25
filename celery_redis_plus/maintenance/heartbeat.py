"""Tells the server that this process lives, and which connections say so; learns whether it leads."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import KnownProcess, server_run
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.processes import Beat, Processes, ProcessRecord
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.maintenance.leader import Leadership
    from celery_redis_plus.maintenance.own_process import OwnProcess

logger = logging.getLogger(__name__)

#: Heartbeats of all followers in a second, at most, and seconds between two of one. Each of them looks whether there is a leader.
BEATS_A_SECOND, LONGEST_BEAT_S = 50, 20.0
#: Heartbeats of the leader in the time between two of a follower, and after how many of them it is late.
FOLLOWER_BEATS, LATE_BEATS = 3, 1.5
#: Seconds within which followers want to lead when the leader's lease ends: many may have heard that it is late.
SPREAD_S = 0.1
#: Seconds for which the start of the server is uncertain: it tells whole seconds.
UPTIME_MARGIN_S = 2.0


class Heartbeat(MaintenanceTask):
    """The maintenance task that tells of this process."""

    def __init__(
        self,
        commands: CommandConnection,
        processes: Processes,
        own: OwnProcess,
        leadership: Leadership,
        *,
        name: str,
        visibility_timeout_s: float,
        on_forgotten: Callable[[], None] = lambda: None,
        before: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Tell what `own` is as the process `name`, at once when that changes.

        `leadership` learns whether it leads. `on_forgotten` is called when the server has lost this process: it was flushed,
        or the process was away for long. `before` is called before each heartbeat, with the latest time of the next one on
        `clock`, in seconds: what it buffers goes with this one.
        """
        self._commands = commands
        self._processes = processes
        self._own = own
        self._leadership = leadership
        self._name = name
        self._visibility_timeout_s = visibility_timeout_s
        self._on_forgotten = on_forgotten
        self._before = before
        #: What the last run went by: generations of the connections, versions of what the record tells of.
        self._seen: tuple[int, ...] = ()
        self._generation = -1
        self._run_began_at = 0.0
        #: The server's `run_id`; '' where it is unknown.
        self.server_run = ""
        #: Whether the connections of this process tell that it lives; and whether the server tells it which connections exist.
        self.is_judged = self.asks = True
        self._logged: set[str] = set()
        #: This process' record as it is stored; None: there is none.
        self.stored: ProcessRecord | None = None
        #: The next heartbeat comes within so many seconds.
        self.rest_s = leadership.beat_s
        #: What the leader knows: version of the records, and all of them by process.
        self.version = ""
        self.known: dict[str, KnownProcess] = {}

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return self._due_at if self._now_seen() == self._seen else 0.0

    @property
    def has_reported(self) -> bool:
        """Whether the server knows what this process consumes, or cannot miss its messages anyhow."""
        return not self.is_judged or self._seen[-1:] == (self._own.versions[-1],)

    def run(self) -> None:
        """Send a heartbeat. Raises as `CommandConnection.call` does; the next one is due all the same then."""
        self._due_at = clock.now_s() + self._leadership.beat_s
        try:
            self._meet_server()
            now_seen = self._now_seen()
            self._before(clock.now_s() + self.rest_s)
            self.beat()
            # Not where the server has refused the record.
            self._seen = now_seen
        except NoPermissionError as error:
            self._refused(str(error))

    def beat(self) -> None:
        """Tell that this process lives, and what has changed of it. Raises as `CommandConnection.call` does."""
        record = self._own.record(self.server_run, self._run_began_at)
        if record is None:
            self._withdraw()
            self._due_at = math.inf
            return
        if not self.is_judged:
            record = replace(record, ids=())
        text = "" if self.stored is not None and self.stored.covers(record) else record.encode()
        sent_at, lease_s = clock.now_s(), self._leadership.lease_s
        beat = self._send(text)
        if beat.state == "unknown":
            if self.stored is not None:
                # The database was flushed; or this process was away for long, and counts as lost.
                self._on_forgotten()
            text, sent_at = record.encode(), clock.now_s()
            beat = self._send(text)
        if text:
            self.stored = record
        self._leadership.alone = beat.processes <= 1
        promised_s, self.rest_s = self.rest_s, self._rest_of(beat)
        # Not later than this heartbeat has said.
        rest_s = min(promised_s, self.rest_s)
        if beat.state == "leader":
            self._leadership.renew(beat.epoch, sent_at + lease_s)
            if beat.known is not None:
                self.known = beat.known
            self.version = beat.version
        else:
            self._leadership.end()
            # The next leader gets the records anew.
            self.version, self.known = "", {}
            rest_s *= random.uniform(0.8, 1.0)  # noqa: S311 - spreads load, guards nothing
            if beat.lease_left_s < self._leadership.lease_s - LATE_BEATS * self._leadership.beat_s:
                # The leader is late: this process leads as soon as the lease ends.
                rest_s = min(rest_s, beat.lease_left_s + random.uniform(0.0, SPREAD_S))  # noqa: S311 - as above
        self._due_at = sent_at + rest_s

    def _rest_of(self, beat: Beat) -> float:
        """Return the seconds until the next heartbeat: few processes look often for a dead leader, many of them together do."""
        if beat.state == "leader" or self._own.looks:
            return self._leadership.beat_s
        return max(FOLLOWER_BEATS * self._leadership.beat_s, min(LONGEST_BEAT_S, beat.processes / BEATS_A_SECOND))

    def _send(self, record: str) -> Beat:
        return self._processes.beat(
            self._name,
            record,
            may_lead=True,
            asks=self.asks and self.is_judged,
            lease_s=self._leadership.lease_s,
            version=self.version,
            next_s=self.rest_s,
        )

    def _now_seen(self) -> tuple[int, ...]:
        return (*(connection.generation for connection in self._own.connections()), *self._own.versions)

    def _meet_server(self) -> None:
        """Learn which run of the server this is, after each new connection."""
        for connection in self._own.own:
            connection.connect()
        if self._commands.generation == self._generation:
            return
        self.asks, self.is_judged = True, self._own.grace_s > 0
        self._forget()
        ids = [connection.client_id for connection in self._own.own]
        self._generation = self._commands.generation
        if not self.is_judged:
            return
        if None in ids:
            self.cannot_be_judged("the server refuses CLIENT ID")
        elif len({*ids}) < len(ids):
            self.cannot_be_judged("several connections have one client id, as behind a proxy that shares connections")
        else:
            run = server_run(self._commands)
            self.server_run, self._run_began_at = run.id, clock.now_s() - run.uptime_s - UPTIME_MARGIN_S
            if not self.server_run:
                self.cannot_be_judged("the server refuses INFO")

    def _forget(self) -> None:
        self.stored, self.version, self.known = None, "", {}
        self._leadership.end()

    def _withdraw(self) -> None:
        """Remove the record: this process has nothing that somebody else could miss."""
        stored = self.stored
        self._forget()
        if stored is not None:
            self._processes.replace(self._name, stored.encode(), "")

    def _refused(self, why: str) -> None:
        """Go on without heartbeats, as a process that others cannot judge; try again with the next connection.

        A process that consumes has the right to them; one that gets messages one at a time may not.
        """
        self.tell(why)
        self._forget()
        self.is_judged = False
        self._seen, self._due_at = self._now_seen(), math.inf

    def cannot_be_judged(self, why: str) -> None:
        """Name no connections until the next one is made, and say so once: they do not tell whether this process lives."""
        self.tell(why)
        self.is_judged, self.stored = False, None
        self.run_soon()

    def cannot_ask(self, why: str) -> None:
        """Note that this process may not ask for connections; others may be permitted to, and one of them leads then."""
        self.tell(why)
        self.asks = False
        self.run_soon()

    def tell(self, why: str) -> None:
        """Log, once for each reason, that the visibility timeout holds."""
        if why not in self._logged:
            self._logged.add(why)
            logger.warning(
                "the messages of a worker that dies come back after the visibility timeout (%g s), and not after "
                "connection_lost_grace: it is unknown which connections it has left (%s)",
                self._visibility_timeout_s, why,
            )  # fmt: skip

    def lose(self, process: str, seen: str, record: str, *, silent_s: float = 0.0) -> bool:
        """Replace the record of another process, '' for none, while this one leads.

        Returns whether it was still `seen`, and the process was silent for `silent_s` seconds at least.
        """
        if not self._processes.replace(process, seen, record, epoch=self._leadership.epoch, silent_s=silent_s):
            return False
        if record:
            self.known[process] = KnownProcess(record, 0.0)
        else:
            self.known.pop(process, None)
        return True

    def connected(self, ids: Collection[int]) -> set[int]:
        """Return which of the client ids are connected. Raises as `CommandConnection.command` does."""
        return self._processes.connected(ids)
