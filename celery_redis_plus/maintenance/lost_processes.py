"""Notices that a consuming process has lost all of its connections, and puts back what it had.

Each process stores which connections it has (`presence.py`). Two of them at a time are watchers: they ask the server which of
these connections still exist, once a second, and every 30 s while all processes are idle. docs/design/0013-lost-processes.md says
why no living process counts as lost when the server stalls, restarts or fails over.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import IDLE_S, LEASE_S, LOST, REPORT_S, ProcessRecord, Report, server_run
from celery_redis_plus.maintenance.process_recovery import ProcessRecovery

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.processes import Processes
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
    from celery_redis_plus.maintenance.presence import Presence
    from celery_redis_plus.maintenance.process_recovery import LostRoles
    from celery_redis_plus.maintenance.shared_work import SharedWork

logger = logging.getLogger(__name__)

#: Seconds between two looks of a watcher; shorter where the grace is.
LOOK_S = 1.0
#: Looks in the shortest grace, and seconds between them at least.
LOOKS_IN_GRACE, LEAST_LOOK_S = 4, 0.1
#: Intervals by which one look may prolong an absence, and after which all absences begin anew: the server, or this process, stood
#: still meanwhile, and a process that lives had no chance to come back.
COUNTED_INTERVALS, LONGEST_INTERVALS = 1.5, 3.0
#: Seconds after which a watcher finishes what another one has left.
TAKE_OVER_S = 5.0
#: Seconds after which a record of an earlier run of the server is removed: its process is gone, or has stopped consuming.
STALE_S = 600.0
#: Seconds for which the start of the server is uncertain: it tells whole seconds.
UPTIME_MARGIN_S = 2.0


@dataclass(slots=True)
class _Absence:
    """A process without a connection."""

    #: Its record, as it is stored.
    text: str
    seconds: float = 0.0


class LostProcesses:
    """The maintenance task that reports this process, and watches the others."""

    def __init__(
        self,
        commands: CommandConnection,
        processes: Processes,
        presence: Presence,
        watched: ConsumedQueues,
        shared: SharedWork,
        roles: LostRoles,
        *,
        name: str,
        visibility_timeout_s: float,
    ) -> None:
        """Report `presence` as the process `name`, and anew when `watched` changes; tell `shared` how many there are.

        `roles` ends what lost ones were.
        """
        self._commands = commands
        self._processes = processes
        self._presence = presence
        self._watched = watched
        self._shared = shared
        self._name = name
        #: The key by which others wake this process.
        self.wakeup = processes.wakeup_of(name)
        self._visibility_timeout_s = visibility_timeout_s
        self._next_run_at = self._report_at = 0.0
        #: What the last run went by: generations of the connections, versions of what the record tells of.
        self._seen: tuple[int, ...] = ()
        self._generation = -1
        self._run, self._run_began_at = "", 0.0
        #: This process' record as it is stored; None: there is none.
        self._stored: ProcessRecord | None = None
        #: False: this process does not report, because its connections would not tell whether it lives.
        self.reports = self._is_on = presence.grace_s > 0
        self._may_watch = True
        self._told: set[str] = set()
        self._watches = False
        #: Whether the server knows that this process may have messages: others look for it often. True where it is off.
        self.told_busy = not self._is_on
        #: A delivery has waited for that in vain.
        self.told_late = False
        #: All processes are idle: this one looks rarely. And whether the server knows that.
        self._calm = self._told_calm = False
        self._version = ""
        #: All records by process, and when each was seen first that is not watched, on `clock`.
        self._records: dict[str, str] = {}
        self._idle_since: dict[tuple[str, str], float] = {}
        self._absences: dict[str, _Absence] = {}
        self._looked_at = -math.inf
        self._recovery = ProcessRecovery(processes, roles)

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        if not self._is_on:
            return math.inf
        return self._next_run_at if self._now_seen() == self._seen and not self._owes_report else 0.0

    @property
    def _owes_report(self) -> bool:
        """Whether this process has messages, and the server takes it for idle."""
        return not self.told_busy and self._presence.has_messages

    @property
    def has_reported(self) -> bool:
        """Whether the server knows what this process consumes: else its messages would not be missed. True where it is off."""
        return not (self._is_on and self.reports) or self._seen[-1:] == (self._watched.version,)

    @property
    def recovered(self) -> int:
        """How many messages this process has put back."""
        return self._recovery.recovered

    def run_soon(self) -> None:
        """Run next at once: there is a process to watch, or one watcher too few."""
        self._next_run_at = self._report_at = 0.0

    def look(self) -> None:
        """Report, and look at the others, at once where this process does not watch yet. From any thread."""
        if not self._watches:
            self.run_soon()

    def run(self) -> None:
        """Do what is due. Raises as `CommandConnection.call` does."""
        now = clock.now_s()
        self._next_run_at = math.inf
        try:
            self._meet_server()
            now_seen = self._now_seen()
            if self.reports and (now_seen != self._seen or now >= self._report_at or self._owes_report):
                self._report()
            # Not where the server has refused the report.
            self._seen = now_seen
            if self._watches:
                self._look()
        except NoPermissionError as error:
            self._stop_reporting(str(error))
            return
        finally:
            if self.reports and self._next_run_at == math.inf:
                self._next_run_at = min(self._report_at, now + LOOK_S if self._watches else math.inf)
        if not self._recovery.run():
            self._next_run_at = 0.0

    def _now_seen(self) -> tuple[int, ...]:
        return (*(connection.generation for connection in self._presence.connections()), *self._presence.versions)

    # -- this process -----------------------------------------------------------------------------------------------------

    def _meet_server(self) -> None:
        """Learn which run of the server this is, after each new connection."""
        for connection in self._presence.own:
            connection.connect()
        if self._commands.generation == self._generation:
            return
        self.reports = self._may_watch = True
        self.told_busy = False
        self._stored, self._version, self._watches, self._report_at = None, "", False, 0.0
        self._absences.clear()
        ids = [connection.client_id for connection in self._presence.own]
        self._generation = self._commands.generation
        if None in ids:
            self._stop_reporting("the server refuses CLIENT ID")
        elif len({*ids}) < len(ids):
            self._stop_reporting("several connections have one client id, as behind a proxy that shares connections")
        else:
            run = server_run(self._commands)
            self._run, self._run_began_at = run.id, clock.now_s() - run.uptime_s - UPTIME_MARGIN_S
            if not self._run:
                self._stop_reporting("the server refuses INFO")

    def _report(self, absent: Collection[str] = ()) -> None:
        """Store what has changed of this process, and take or renew a watcher's place; `absent` ones lose theirs."""
        # What is claimed from now on may be missing in the record, and waits for the next one.
        self.told_busy = False
        record = self._presence.record(self._run, self._run_began_at)
        if record is None:
            self._withdraw()
            return
        text = "" if self._stored is not None and self._stored.covers(record) else record.encode()
        rarely = self._calm and not record.busy
        report = self._processes.report(
            self._name, text, watches=self._may_watch, version=self._version, rarely=rarely, absent=absent
        )
        if report.state == "unknown":
            # The database was flushed; or this process was away for long, and counts as lost.
            text, rarely = record.encode(), False
            report = self._processes.report(self._name, text, watches=self._may_watch, version=self._version)
        if report.state == "standby" and (self._stored is None or self._presence.looks):
            report = self._replace_gone_watchers(report)
        if text:
            self._stored = record
        self.told_busy, self._told_calm = record.busy, rarely
        self.told_late = self.told_late and not record.busy
        self._version, self._shared.processes = report.version, report.processes
        if report.state != "standby" and report.records is not None:
            self._records = report.records
        elif report.state == "standby":
            # The next report gives the records anew where this process is a watcher by then.
            self._version = ""
        if report.state != "watching":
            self._absences.clear()
            self._calm = False
        self._watches = report.state == "watching"
        if self._watches:
            rest_s = IDLE_S if rarely else LEASE_S / 2
        else:
            rest_s = self._shared.interval_s(REPORT_S if record.busy else IDLE_S)
        self._report_at = clock.now_s() + rest_s

    def _replace_gone_watchers(self, report: Report) -> Report:
        """Take the place of a watcher that has no connection left, at once and not when its lease ends; return the new report."""
        known = {name: ProcessRecord.decode(text) for name, text in (report.records or {}).items()}
        judged = {name: record for name, record in known.items() if record is not None and record.run == self._run and record.ids}
        connected = self._connected({number for record in judged.values() for number in record.ids})
        if connected is None:
            return report
        gone = [name for name, record in judged.items() if not connected & set(record.ids)]
        if not gone:
            return report
        return self._processes.report(self._name, "", watches=self._may_watch, version="", absent=gone)

    def _withdraw(self) -> None:
        """Remove the record: this process has nothing that somebody else could miss."""
        stored, self._stored = self._stored, None
        self._watches, self._report_at = False, math.inf
        self._absences.clear()
        if stored is not None:
            self._processes.replace(self._name, stored.encode(), "")

    def _stop_reporting(self, why: str) -> None:
        """Neither report nor watch until the next connection, and say so once."""
        self._tell(why)
        stored, self.reports, self._watches = self._stored, False, False
        self.told_busy = True
        self._absences.clear()
        if stored is not None:
            self._stored = None
            try:
                self._processes.replace(self._name, stored.encode(), "")
            except NoPermissionError as error:
                logger.debug("the record of this process stays: %s", error)

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            logger.warning(
                "the messages of a worker that dies come back after the visibility timeout (%g s), and not after "
                "connection_lost_grace: it is unknown which connections it has left (%s)",
                self._visibility_timeout_s, why,
            )  # fmt: skip

    # -- the others -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask which connections exist, and begin the recovery of processes that have had none for too long."""
        watched = self._watched_records()
        shortest_s = min((record.grace_s for record in watched.values()), default=math.inf) / LOOKS_IN_GRACE
        interval_s = min(LOOK_S, max(shortest_s, LEAST_LOOK_S))
        generation = self._commands.generation
        own = set() if self._stored is None else set(self._stored.ids)
        ids = Counter(number for record in watched.values() for number in record.ids)
        ids.update(own)
        if ids.total() > len(ids):
            self._stop_reporting("processes have the same client ids, as behind a proxy that shares connections")
            return
        # One id of each process; all of those that may have none.
        connected = self._connected(own | {record.ids[-1] for record in watched.values()})
        if connected is not None:
            doubtful = [record for record in watched.values() if record.ids[-1] not in connected]
            connected |= self._connected({number for record in doubtful for number in record.ids[:-1]}) or set()
        if connected is None or not self._watches or self._commands.generation != generation:
            return
        if not connected & own:
            self._stop_reporting("the server does not list the connections of this process, as behind a proxy")
            return
        absent = [name for name, record in watched.items() if not connected & set(record.ids)]
        look_again = False
        if absent:
            # A write: while the server takes none, no process can come back. And the records as they are now.
            before = dict(self._records)
            self._report(absent)
            unchanged = [name for name in absent if self._records.get(name) == before[name]]
            # The others have reported since: no process has asked for the connections that they name now.
            look_again, absent = len(unchanged) < len(absent), unchanged
        self._note_absent(absent, interval_s)
        for name, absence in list(self._absences.items()):
            grace_s = watched[name].grace_s
            if absence.seconds >= grace_s:
                self._lose(name, absence, watched[name])
            else:
                interval_s = min(interval_s, max(grace_s - absence.seconds, 0.05))
        self._next_run_at = self._looked_at + (LEAST_LOOK_S if look_again else interval_s)
        self._calm = not (
            self.told_busy
            or self._absences
            or any(record.busy for record in watched.values())
            or any(text.startswith(LOST) for text in self._records.values())
        )
        if self._calm:
            self._next_run_at = min(self._looked_at + IDLE_S, self._report_at)
        elif self._told_calm:
            # Its place must not outlast it for long any more.
            self._next_run_at = self._report_at = 0.0

    def _watched_records(self) -> dict[str, ProcessRecord]:
        """Return the records of the other processes that can be judged, and see to the others."""
        watched = {}
        now = clock.now_s()
        idle = {}
        for name, text in list(self._records.items()):
            lost = text.startswith(LOST)
            record = ProcessRecord.decode(text.removeprefix(LOST))
            if name == self._name or record is None:
                continue
            if not lost and record.run == self._run and record.ids:
                watched[name] = record
                continue
            since = idle[name, text] = self._idle_since.get((name, text), now)
            if lost and now - since > TAKE_OVER_S and not self._recovery.includes(name):
                self._recovery.add(name, text, record)
            elif not lost and now - since > STALE_S and self._processes.replace(name, text, ""):
                del self._records[name]
        self._idle_since = idle
        return watched

    def _connected(self, ids: Collection[int]) -> set[int] | None:
        """Return which clients are connected; None where the server does not tell."""
        try:
            return self._processes.connected(ids)
        except ResponseError as error:
            if not isinstance(error, NoPermissionError) and "unknown" not in str(error).lower():
                raise
            # Others may be permitted to.
            self._tell(f"the server refuses CLIENT LIST: {error}")
            self._may_watch = self._watches = False
            self._report_at = 0.0
            self._absences.clear()
            return None

    def _note_absent(self, absent: list[str], interval_s: float) -> None:
        """Prolong the absences by the time since the last look; begin all anew where that was too long."""
        now = clock.now_s()
        passed_s, self._looked_at = now - self._looked_at, now
        if passed_s > LONGEST_INTERVALS * max(interval_s, LOOK_S):
            self._absences.clear()
        known, self._absences = self._absences, {}
        for name in absent:
            text = self._records[name]
            absence = known.get(name)
            if absence is None or absence.text != text:
                absence = _Absence(text)
            else:
                absence.seconds += min(passed_s, COUNTED_INTERVALS * interval_s)
            self._absences[name] = absence

    def _lose(self, name: str, absence: _Absence, record: ProcessRecord) -> None:
        """Take a process for lost, unless it has come back at this moment."""
        del self._absences[name]
        text = LOST + absence.text
        if self._processes.replace(name, absence.text, text):
            self._records[name] = text
            self._recovery.add(name, text, record)
