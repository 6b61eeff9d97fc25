"""The registry of consuming processes: which connections each has, and what comes back when it has none any more.

A process has one record, however many sessions it has: its maintenance service keeps the leases of all of them, also of broken
ones whose tasks still run. docs/design/0013-lost-processes.md has the reasons.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_redis_plus.broker.consumers.failures import Failed, read_deaths
from celery_redis_plus.connection.server_check import parse_info
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Processes that watch the others at the same time: with one alone, its own death would be noticed late.
WATCHERS = 2
#: Seconds for which a watcher has its place; it renews it after half of that.
LEASE_S = 6.0
#: Seconds between two reports of a process that does not watch.
REPORT_S = 10.0
#: Seconds between two reports of an idle process, and between two looks of a watcher while all processes are idle.
IDLE_S = 30.0
#: Seconds for which a watcher has its place that is alone, or has idle processes to watch: two reports may be late.
IDLE_LEASE_S = 2.5 * IDLE_S
#: Client ids in one CLIENT LIST.
IDS = 500
#: Unacked messages that one call of the recovery looks at.
PAGE = 500
#: Stands before the record of a process while its messages are put back; `lua/include/processes.lua` has it too.
LOST = "lost "
#: Where the recovery of a queue begins.
FIRST_PAGE = b""
#: Source: https://redis.io/docs/latest/commands/client-list/ - one line a connection, the id first.
_ID = re.compile(rb"^id=(\d+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What the server knows of a process."""

    #: The server's `run_id` that `ids` belong to: another run counts them anew.
    run: str
    #: The client ids of its connections; it lives while one of them is connected.
    ids: tuple[int, ...]
    #: Its `connection_lost_grace`, in seconds.
    grace_s: float
    #: The sessions that may have messages.
    sessions: tuple[str, ...]
    #: The queues that these are in, or that it consumes.
    queues: tuple[str, ...]
    host: str
    pid: int
    #: It has messages, or had some lately, or a consumer with a privilege: others wait for what it leaves when it dies.
    busy: bool = True
    #: The maintenance tasks of the process that fail, and what they raised last: for `doctor`.
    failing: Mapping[str, str] = field(default_factory=dict)
    #: Fanout exchanges of which it has subscribers.
    exchanges: tuple[str, ...] = ()

    def encode(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> ProcessRecord | None:
        """Return the record that `encode` made into `text`; None for anything else, such as a later version's."""
        try:
            fields = json.loads(text)
            return cls(
                str(fields["run"]),
                tuple(map(int, fields["ids"])),
                float(fields["grace_s"]),
                tuple(map(str, fields["sessions"])),
                tuple(map(str, fields["queues"])),
                str(fields["host"]),
                int(fields["pid"]),
                bool(fields.get("busy", True)),
                {str(task): str(error) for task, error in fields.get("failing", {}).items()},
                tuple(map(str, fields.get("exchanges", ()))),
            )
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return None

    def covers(self, other: ProcessRecord) -> bool:
        """Return whether this record, which is stored, says all that `other` does: what is over does no harm."""
        return (
            (self.run, self.grace_s, self.busy, self.failing) == (other.run, other.grace_s, other.busy, other.failing)
            and set(self.ids) >= set(other.ids)
            and set(self.sessions) >= set(other.sessions)
            and set(self.queues) >= set(other.queues)
            and set(self.exchanges) >= set(other.exchanges)
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What the server answered to the report of a process."""

    #: `watching`, `alone`, `standby`, `unknown`: see `lua/report_process.lua`.
    state: str
    version: str
    #: How many processes there are.
    processes: int
    #: All records by process, `LOST` before those that are put back; None where they are as before. A standby gets those of the
    #: watchers.
    records: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class RecoveredPage:
    """What one call of the recovery did in a queue."""

    #: Messages that were put back or died, and how many of them died.
    recovered: int
    died: int
    consumers: int
    #: Where to go on; empty: nowhere.
    next_page: bytes
    #: The queue's owner, where that is one of the sessions; else empty.
    owner: bytes
    deaths: Sequence[Failed]


@dataclass(frozen=True, slots=True)
class ServerRun:
    """The run of the server that a connection has reached."""

    #: Client ids are unique in it; '' where the server does not tell.
    id: str
    #: For how many seconds it has run, infinite where the server does not tell.
    uptime_s: float


def server_run(commands: CommandConnection) -> ServerRun:
    """Return which run of the server `commands` is connected to. Raises as `CommandConnection.command` does."""
    try:
        info = parse_info(commands.command("INFO", "server", "replication"))
    except ResponseError as error:
        logger.debug("INFO is refused: %s", error)
        return ServerRun("", math.inf)
    run = info.get("run_id", "")
    finder = commands.connector.finder
    if finder is not None and run:
        # A server that was demoted and is promoted again has the run that it had, and in its data the records of that
        # time. A promotion begins a new replication id, and a slot that comes back to a node a new epoch.
        run = f"{run} {info.get('master_replid', '')}{finder.ownership}"
    return ServerRun(run, float(info.get("uptime_in_seconds", "inf")))


class Processes:
    """The registry over one connection. All methods raise as `CommandConnection.call` does."""

    def __init__(self, commands: CommandConnection, keys: Keys, *, delivery_limit: int | None, dead_letter_max: int) -> None:
        """Use `commands`; the limits hold for what is put back.

        Args:
            commands: the connection.
            keys: spells the keys.
            delivery_limit: failed deliveries after which a message dies in queues without a limit of their own; None is never.
            dead_letter_max: how many dead letters a queue keeps.
        """
        self._commands = commands
        self._keys = keys
        self._limits = (-1 if delivery_limit is None else delivery_limit, dead_letter_max)

    def report(
        self, process: str, record: str, *, watches: bool, version: str, rarely: bool = False, absent: Iterable[str] = ()
    ) -> Report:
        """Store `record` ('': it is as stored), and take or renew a watcher's place where `watches` and one is free.

        Args:
            process: the process that reports.
            record: its record.
            watches: whether it may be a watcher.
            version: that of the records that it knows.
            rarely: whether it looks every `IDLE_S` seconds only, and keeps a watcher's place for longer.
            absent: processes without a connection: they lose their places as watchers.
        """
        places = WATCHERS if watches else 0
        leases = int(LEASE_S * 1000), int(IDLE_LEASE_S * 1000)
        state, new_version, count, *fields = self._commands.call(
            script("report_process"), self._keys.processes, process, record, places, *leases, int(rarely), version, *absent
        )
        records: Mapping[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
        changed = new_version.decode() != version
        return Report(
            state.decode(),
            new_version.decode(),
            count,
            {name.decode(): text.decode("utf-8", "replace") for name, text in records.items()} if changed else None,
        )

    def all(self) -> list[ProcessRecord]:
        """Return the records of all processes, those included that are put back; one of a later version is left out."""
        flat: list[bytes] = self._commands.command("HGETALL", self._keys.processes[0])
        found = (ProcessRecord.decode(text.decode("utf-8", "replace").removeprefix(LOST)) for text in flat[1::2])
        return [record for record in found if record is not None]

    def wakeup_of(self, process: str) -> bytes:
        """Return the key by which a process is woken."""
        return self._keys.processes[-1] + process.encode()

    def ended(self, processes: Iterable[str]) -> set[str]:
        """Return which of these processes have no connection: each of them is lost, or will be after its grace.

        Those are left out of which that cannot be told: they have no record, or one of another run of the server, or the user may
        not ask.
        """
        names = sorted({*processes} - {""})
        if not names:
            return set()
        try:
            run = server_run(self._commands).id
            texts = self._commands.command("HMGET", self._keys.processes[0], *names)
            records = [ProcessRecord.decode((text or b"").decode("utf-8", "replace").removeprefix(LOST)) for text in texts]
            ids = {
                name: set(record.ids)
                for name, record in zip(names, records, strict=True)
                if record is not None and record.run == run and record.ids
            }
            connected = self.connected(number for some in ids.values() for number in some) if ids else set()
        except ResponseError as error:
            logger.debug("it is unknown whether processes have ended: %s", error)
            return set()
        return {name for name, some in ids.items() if not connected & some}

    def replace(self, process: str, seen: str, record: str) -> bool:
        """Replace the record `seen` by another one, '' for none; return False where it is not the stored one any more."""
        return bool(self._commands.call(script("replace_process"), self._keys.processes, process, seen, record))

    def connected(self, ids: Iterable[int]) -> set[int]:
        """Return which of the client ids are connected to the server."""
        asked = sorted(ids)
        found: set[int] = set()
        for at in range(0, len(asked), IDS):
            reply = self._commands.command("CLIENT", "LIST", "ID", *asked[at : at + IDS])
            found.update(map(int, _ID.findall(reply)))
        return found

    def recover(self, queue: str, sessions: Collection[str], page: bytes) -> RecoveredPage:
        """Put back a page of the messages that `sessions` have of a queue; with the last page their consumers leave it."""
        recovered, died, consumers, next_page, owner, *deaths = self._commands.call(
            script("recover_sessions"), self._keys.queue(queue).consumer_keys, page, PAGE, *self._limits, *sessions
        )
        return RecoveredPage(recovered, died, consumers, next_page, owner, list(read_deaths(deaths)))
