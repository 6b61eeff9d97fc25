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
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Client ids in one CLIENT LIST.
IDS = 500
#: Unacked messages that one call of the recovery looks at.
PAGE = 250
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
                {str(task): str(error) for task, error in fields.get("failing", {}).items()},
                tuple(map(str, fields.get("exchanges", ()))),
            )
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return None

    def covers(self, other: ProcessRecord) -> bool:
        """Return whether this record, which is stored, says all that `other` does: what is over does no harm."""
        return (
            (self.run, self.grace_s, self.failing) == (other.run, other.grace_s, other.failing)
            and set(self.ids) >= set(other.ids)
            and set(self.sessions) >= set(other.sessions)
            and set(self.queues) >= set(other.queues)
            and set(self.exchanges) >= set(other.exchanges)
        )


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process as the leader knows it."""

    #: Its record as it is stored, `LOST` before it while the process is recovered.
    text: str
    #: By how many seconds its heartbeat is overdue, as of the leader's first heartbeat, in which the server has heard others.
    overdue_s: float


@dataclass(frozen=True, slots=True)
class Beat:
    """What the server answered to the heartbeat of a process."""

    #: `leader`, `follower`, `unknown`: see `lua/heartbeat_process.lua`.
    state: str
    #: How often another process has become the leader.
    epoch: int
    version: str
    #: How many processes there are.
    processes: int
    #: Seconds until the leader's lease ends, unless it sends a heartbeat.
    lease_left_s: float
    #: All of them by name, for a leader; None where they are as before.
    known: dict[str, KnownProcess] | None


@dataclass(frozen=True, slots=True)
class RecoveredPage:
    """What one call of the recovery did in a queue."""

    #: Messages that were put back or died, and how many of them died.
    recovered: int
    died: int
    #: Where to go on; empty: nowhere.
    next_page: bytes
    deaths: Sequence[Failed]


@dataclass(frozen=True, slots=True)
class RemovedConsumers:
    """What became of the consumers that a process had in a queue."""

    count: int
    #: The queue's owner, where that is one of the sessions; else empty.
    owner: bytes


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

    def beat(self, process: str, record: str, *, may_lead: bool, asks: bool, lease_s: float, version: str, next_s: float) -> Beat:
        """Tell that a process lives, and make it the leader where none lives.

        Args:
            process: the process that tells.
            record: its record; '' where it is as stored.
            may_lead: whether it can be the leader.
            asks: whether it is permitted to ask for connections: such a one leads rather than another.
            lease_s: for how many seconds it leads then, without another heartbeat.
            version: that of the records that it knows.
            next_s: its next heartbeat comes within so many seconds.
        """
        reply = self._commands.call(
            script("heartbeat_process"),
            self._keys.processes,
            process,
            record,
            1 + asks if may_lead else 0,
            int(lease_s * 1000),
            version,
            int(next_s * 1000),
        )
        state, epoch, new_version, count, lease_left_ms, *parts = reply
        known = {
            name.decode(): KnownProcess(text.decode("utf-8", "replace"), overdue_ms / 1000)
            for name, text, overdue_ms in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        }
        news = known if state == b"leader" and new_version.decode() != version else None
        return Beat(state.decode(), int(epoch), new_version.decode(), count, lease_left_ms / 1000, news)

    def all(self) -> list[ProcessRecord]:
        """Return the records of all processes, those included that are put back; one of a later version is left out."""
        flat: list[bytes] = self._commands.command("HGETALL", self._keys.processes[0])
        found = (ProcessRecord.decode(text.decode("utf-8", "replace").removeprefix(LOST)) for text in flat[1::2])
        return [record for record in found if record is not None]

    def living(self) -> list[ProcessRecord]:
        """Return the records of the processes whose next heartbeat is not overdue; of one of a later version nothing is known."""
        records, heartbeats, _ = self._keys.processes
        names = self._commands.command("ZRANGE", heartbeats, server_ms(self._commands), b"+inf", "BYSCORE")
        texts = self._commands.command("HMGET", records, *names) if names else []
        found = (ProcessRecord.decode(text.decode("utf-8", "replace")) for text in texts if text is not None)
        return [record for record in found if record is not None]

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

    def replace(self, process: str, seen: str, record: str, *, epoch: int | None = None, silent_s: float = 0.0) -> bool:
        """Replace the record `seen` by another one, '' for none; return False where it is not the stored one any more.

        Also where another process leads than the caller, whose `epoch` as a leader it is (None is its own record), or where the
        process' heartbeat is not overdue by `silent_s` seconds.
        """
        fence, silent_ms = "" if epoch is None else epoch, int(silent_s * 1000)
        return bool(self._commands.call(script("replace_process"), self._keys.processes, process, seen, record, fence, silent_ms))

    def connected(self, ids: Iterable[int]) -> set[int]:
        """Return which of the client ids are connected to the server."""
        asked = sorted(ids)
        found: set[int] = set()
        for at in range(0, len(asked), IDS):
            reply = self._commands.command("CLIENT", "LIST", "ID", *asked[at : at + IDS])
            found.update(map(int, _ID.findall(reply)))
        return found

    def recover(self, queue: str, sessions: Collection[str], page: bytes) -> RecoveredPage:
        """Put back a page of the messages that `sessions` have of a queue."""
        recovered, died, next_page, *deaths = self._commands.call(
            script("recover_sessions"), self._keys.queue(queue).state_keys, page, PAGE, *self._limits, *sessions
        )
        return RecoveredPage(recovered, died, next_page, list(read_deaths(deaths)))

    def remove_consumers(self, queue: str, sessions: Collection[str]) -> RemovedConsumers:
        """Take the consumers of `sessions` off the list of a queue."""
        removed, owner = self._commands.call(script("remove_consumers"), self._keys.queue(queue).consumer_keys, *sessions)
        return RemovedConsumers(removed, owner)
