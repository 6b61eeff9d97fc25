"""Notices that a consuming process has lost all of its connections, and has put back what it had. A task of the leader.

Each process stores which connections it has (`own_process.py`). The leader asks the server once a second which of them exist.
docs/design/0013-lost-processes.md says why no living process counts as lost when the server stalls, restarts or fails over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import LOST, ProcessRecord
from celery_redis_plus.maintenance.leader import LEAST_LOOK_S, LOOKS_IN_GRACE, LeaderTask
from celery_redis_plus.maintenance.process_recovery import ProcessRecovery

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.processes import Processes
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.maintenance.heartbeat import Heartbeat
    from celery_redis_plus.maintenance.leader import Leadership
    from celery_redis_plus.maintenance.process_recovery import LostRoles


#: Seconds between two looks; shorter where the grace is, longer beyond so many processes.
LOOK_S, PROCESSES_A_SECOND = 1.0, 500
#: Intervals by which one look may prolong an absence, and after which all absences begin anew: the server, or this process, stood
#: still meanwhile, and a process that lives had no chance to come back.
COUNTED_INTERVALS, LONGEST_INTERVALS = 1.5, 3.0
#: Seconds of silence after which a record is removed that names no connections of this run of the server: its process is gone.
STALE_S = 600.0


@dataclass(slots=True)
class _Absence:
    """A process without a connection."""

    #: Its record, as it is stored.
    text: str
    seconds: float = 0.0


class LostProcesses(LeaderTask):
    """The leader's task that looks for processes without a connection."""

    def __init__(
        self,
        commands: CommandConnection,
        processes: Processes,
        heartbeat: Heartbeat,
        leadership: Leadership,
        roles: LostRoles,
        *,
        name: str,
    ) -> None:
        """Look as the process `name`; `roles` ends what lost ones were."""
        super().__init__(leadership)
        self._commands = commands
        self._heartbeat = heartbeat
        self._name = name
        self._processes, self._roles = processes, roles
        #: Version of the records at the last look, and when that began, on `clock`, in seconds.
        self._version, self._ran_at = "", 0.0
        #: When each record was seen first that is not judged, on `clock`, in seconds.
        self._idle_since: dict[tuple[str, str], float] = {}
        self._absences: dict[str, _Absence] = {}
        self._looked_at = -math.inf
        self._recovery = self._new_recovery()
        self._recovered = 0

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        if not self._heartbeat.is_judged or not self._heartbeat.asks:
            return math.inf
        # Soon where a process is new: it may have died since.
        soon_at = math.inf if self._version == self._heartbeat.version else self._ran_at + LEAST_LOOK_S
        return min(super().next_run_at, soon_at)

    @property
    def recovered(self) -> int:
        """How many messages this process has put back."""
        return self._recovered + self._recovery.recovered

    def run(self) -> None:
        """Look, and put back what lost ones have. Raises as `CommandConnection.call` does."""
        first = self._is_new_leader
        if first:
            self._begin()
        self._version, self._ran_at = self._heartbeat.version, clock.now_s()
        self._due_at = self._ran_at + LOOK_S
        try:
            self._look(first=first)
        except NoPermissionError as error:
            self._heartbeat.cannot_ask(str(error))
            return
        if not self._recovery.run():
            self._due_at = 0.0
        elif not self._heartbeat.known.keys() - {self._name}:
            # Nobody can be missed, until a heartbeat tells of another process.
            self._due_at = math.inf

    def _begin(self) -> None:
        """Forget what an earlier time as leader has left: another one has dealt with it."""
        self._epoch = self._leadership.epoch
        self._absences.clear()
        self._idle_since.clear()
        self._looked_at = -math.inf
        self._recovered += self._recovery.recovered
        self._recovery = self._new_recovery()

    def _new_recovery(self) -> ProcessRecovery:
        return ProcessRecovery(self._processes, self._roles, lambda name, text: self._heartbeat.lose(name, text, ""))

    def _look(self, *, first: bool) -> None:
        """Ask which connections exist, and begin the recovery of processes that have had none for too long."""
        judged = self._judged_records()
        if not judged:
            # There is nobody to be missed.
            self._absences.clear()
            return
        shortest_s = min((record.grace_s for record in judged.values()), default=math.inf) / LOOKS_IN_GRACE
        interval_s = max(min(LOOK_S, max(shortest_s, LEAST_LOOK_S)), len(judged) / PROCESSES_A_SECOND)
        absent = self._without_connection(judged)
        if absent is None:
            return
        # Their heartbeats are missing for so long that they have been gone since about then. One more look has to confirm that.
        since_s = {
            name: min(self._heartbeat.known[name].overdue_s, judged[name].grace_s - LEAST_LOOK_S) if first else 0.0
            for name in absent
        }
        unchanged = self._unchanged(absent) if absent else absent
        if unchanged is None:
            return
        self._note_absent(unchanged, interval_s, since_s)
        look_again = len(unchanged) < len(absent)
        for name, absence in list(self._absences.items()):
            grace_s = judged[name].grace_s
            if absence.seconds >= grace_s:
                self._lose(name, absence, judged[name])
            else:
                interval_s = min(interval_s, max(grace_s - absence.seconds, 0.05))
        self._due_at = self._looked_at + (LEAST_LOOK_S if look_again else interval_s)

    def _without_connection(self, judged: dict[str, ProcessRecord]) -> list[str] | None:
        """Return which processes have no connection; None where that cannot be told."""
        generation = self._commands.generation
        own = set() if self._heartbeat.stored is None else set(self._heartbeat.stored.ids)
        ids = Counter(number for record in judged.values() for number in record.ids)
        ids.update(own)
        if ids.total() > len(ids):
            self._heartbeat.cannot_be_judged("processes have the same client ids, as behind a proxy that shares connections")
            return None
        # One id of each process; all of those that may have none.
        connected = self._connected(own | {record.ids[-1] for record in judged.values()})
        if connected is not None:
            doubtful = [record for record in judged.values() if record.ids[-1] not in connected]
            connected |= self._connected({number for record in doubtful for number in record.ids[:-1]}) or set()
        if connected is None or self._commands.generation != generation:
            return None
        if not connected & own:
            self._heartbeat.cannot_be_judged("the server does not list the connections of this process, as behind a proxy")
            return None
        return [name for name, record in judged.items() if not connected & set(record.ids)]

    def _unchanged(self, absent: list[str]) -> list[str] | None:
        """Return those whose records are as they were; None where this process leads no more.

        A write: while the server takes none, no process can come back. The others have told something since, and nobody has asked
        for the connections that they name now.
        """
        before = {name: self._heartbeat.known[name].text for name in absent}
        self._heartbeat.beat()
        if not self._leadership.leads or self._leadership.epoch != self._epoch:
            return None
        known = self._heartbeat.known
        return [name for name in absent if name in known and known[name].text == before[name]]

    def _judged_records(self) -> dict[str, ProcessRecord]:
        """Return the records of the other processes that can be judged, and see to the others."""
        judged = {}
        now = clock.now_s()
        idle = {}
        for name, known in list(self._heartbeat.known.items()):
            lost = known.text.startswith(LOST)
            record = ProcessRecord.decode(known.text.removeprefix(LOST))
            if name == self._name or record is None:
                continue
            if lost:
                # An earlier leader has begun to recover it.
                if not self._recovery.includes(name):
                    self._recovery.recover(name, known.text, record)
                continue
            if record.run == self._heartbeat.server_run and record.ids:
                judged[name] = record
                continue
            since = idle[name, known.text] = self._idle_since.get((name, known.text), now)
            if now - since > STALE_S:
                self._heartbeat.lose(name, known.text, "", silent_s=STALE_S)
                idle[name, known.text] = now
        self._idle_since = idle
        return judged

    def _connected(self, ids: Collection[int]) -> set[int] | None:
        """Return which clients are connected; None where the server does not tell."""
        try:
            return self._heartbeat.connected(ids)
        except ResponseError as error:
            if not isinstance(error, NoPermissionError) and "unknown" not in str(error).lower():
                raise
            self._heartbeat.cannot_ask(f"the server refuses CLIENT LIST: {error}")
            self._absences.clear()
            return None

    def _note_absent(self, absent: list[str], interval_s: float, since_s: dict[str, float]) -> None:
        """Prolong the absences by the time since the last look; begin all anew where that was long. New ones last `since_s`."""
        now = clock.now_s()
        passed_s, self._looked_at = now - self._looked_at, now
        if passed_s > LONGEST_INTERVALS * max(interval_s, LOOK_S):
            self._absences.clear()
        known, self._absences = self._absences, {}
        for name in absent:
            text = self._heartbeat.known[name].text
            absence = known.get(name)
            if absence is None or absence.text != text:
                absence = _Absence(text, since_s[name])
            else:
                absence.seconds += min(passed_s, COUNTED_INTERVALS * interval_s)
            self._absences[name] = absence

    def _lose(self, name: str, absence: _Absence, record: ProcessRecord) -> None:
        """Take a process for lost, unless it has come back at this moment."""
        del self._absences[name]
        text = LOST + absence.text
        if self._heartbeat.lose(name, absence.text, text):
            self._recovery.recover(name, text, record)
