"""What tasks did, in files that no fault of a server can reach: one a process, only appended to."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.judge import records
from tests.support.judge.records import Record

#: What an entry is in the record of a run.
KINDS = {"start": records.START, "end": records.END, "reject": records.REQUEUED, "bury": records.REJECTED}

VARIABLE = "CRP_CHAOS_LEDGER"


class Pen:
    """Writes the ledger of this process; one `write` a line, so that SIGKILL leaves whole lines."""

    def __init__(self) -> None:
        self._opened: tuple[int, int] = (0, -1)
        self._lock = threading.Lock()

    def write(self, event: str, task: str, *, redelivered: bool = False) -> None:
        now = time.time()
        pid, file = self._opened
        if pid != os.getpid():
            pid, file = self._open()
        line = f"{event} {task} {pid} {os.getsid(0)} {now:.6f} {time.monotonic():.6f} {int(redelivered)}\n"
        os.write(file, line.encode())

    def _open(self) -> tuple[int, int]:
        """Open a file of this process; what a forked pool process inherited is its parent's."""
        with self._lock:
            pid = os.getpid()
            if self._opened[0] != pid:
                path = Path(os.environ[VARIABLE]) / f"{pid}-{time.monotonic_ns()}"
                self._opened = (pid, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
            return self._opened


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        event: "start", "end", or, of a task that rejects its message, "reject" (and asks for a requeue) or "bury".
        worker: the session of the process, which is the process id of its worker's main process.
        time: wall clock, seconds since the epoch.
        tick: a clock that nobody sets, the same for all processes of the machine, in seconds.
    """

    event: str
    task: str
    pid: int
    worker: int
    time: float
    tick: float
    redelivered: bool


class Ledger:
    """Reads what all processes wrote; each call of `read` looks only at what is new."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(exist_ok=True)
        self.entries: list[Entry] = []
        self._offsets: dict[Path, int] = {}
        #: First letter of a task -> how many such tasks have ended.
        self._ended: Counter[str] = Counter()
        self._counts: dict[str, Counter[str]] = {event: Counter() for event in KINDS}

    def read(self) -> list[Entry]:
        for path in self.directory.iterdir():
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                event, task, pid, worker, at, tick, redelivered = line.split(" ")
                entry = Entry(event, task, int(pid), int(worker), float(at), float(tick), redelivered == "1")
                self.entries.append(entry)
                if event == records.END and task not in self._counts[event]:
                    self._ended[task[0]] += 1
                self._counts[event][task] += 1
        return self.entries

    def counted(self, event: str) -> Counter[str]:
        """Task -> how often `event` was read so far. Reads nothing: of use to a thread beside the one that reads."""
        return self._counts[event]

    def ended_of(self, letters: str) -> int:
        """Return how many tasks whose names begin with one of `letters` have ended so far. Reads nothing, as `counted`."""
        return sum(self._ended[letter] for letter in letters)

    def started(self) -> Counter[str]:
        """Task -> how often it was started."""
        self.read()
        return self._counts["start"]

    def rejected(self) -> Counter[str]:
        """Task -> how often it asked for a requeue."""
        self.read()
        return self._counts["reject"]

    def ended(self) -> Counter[str]:
        """Task -> how often it was carried to its end."""
        self.read()
        return self._counts["end"]

    def records(self) -> list[Record]:
        """Return what was read so far as the judge reads it."""
        return [
            Record(
                KINDS[entry.event],
                entry.tick,
                # Plain consumers are in this process's session.
                entry.pid if entry.worker == os.getsid(0) else entry.worker,
                name=entry.task,
                time=entry.time,
                detail={"pid": entry.pid},
            )
            for entry in self.read()
        ]


def repeats(counts: Counter[str]) -> int:
    """How many executions there were beyond the first of each task."""
    return sum(counts.values()) - len(counts)
