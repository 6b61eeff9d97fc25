"""What became of the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.judge.records import CHILD_KILLED, CONSUMING, DISCONNECTED, HEARD, KILLED, SILENT, START, STOPPED

if TYPE_CHECKING:
    from tests.support.judge.records import History


@dataclass
class Life:
    """One worker process, from start to end. Times are ticks (see `records.Record`)."""

    name: str
    worker: int
    killed_at: float | None = None
    #: When it was asked to stop warmly.
    stopped_at: float | None = None
    #: From when to when it gave no sign of life for longer than the visibility timeout.
    silent: list[tuple[float, float]] = field(default_factory=list)
    #: From when it had lost its connection to when it consumed again.
    cut_off: list[tuple[float, float]] = field(default_factory=list)
    #: Pool process -> when it was killed.
    children_killed: dict[int, float] = field(default_factory=dict)

    def gone_at(self, since: float) -> float | None:
        """Return when it was killed, or fell silent, first after a tick; None where it did not."""
        ends = [begin for begin, _ in self.silent] + ([] if self.killed_at is None else [self.killed_at])
        return min((end for end in ends if end >= since), default=None)


def lives_of(history: History) -> list[Life]:
    """Return the life of each process that ran a task."""
    lives = {process: Life(str(process), process) for process in {record.process for record in history.of(START)}}
    since: dict[int, float] = {}
    for record in history.of(KILLED, STOPPED, SILENT, HEARD, CHILD_KILLED):
        life = lives.get(record.process)
        if life is None:
            continue
        if record.kind == KILLED:
            life.killed_at = record.tick
        elif record.kind == STOPPED:
            life.stopped_at = record.tick
        elif record.kind == CHILD_KILLED:
            life.children_killed[record.detail["pid"]] = record.tick
        elif record.kind == SILENT:
            since.setdefault(record.process, record.tick)
        else:
            life.silent.append((since.pop(record.process, record.tick), record.tick))
    for process, tick in since.items():
        lives[process].silent.append((tick, float("inf")))
    for process, life in lives.items():
        life.cut_off = _cut_offs(history, process)
    return list(lives.values())


def _cut_offs(history: History, process: int) -> list[tuple[float, float]]:
    """Return from when to when a process had lost a connection, and did not consume again yet."""
    consumes = [record.tick for record in history.of(CONSUMING) if record.process == process]
    lost = history.fates(process, DISCONNECTED)
    return [(record.tick, next((tick for tick in consumes if tick > record.tick), float("inf"))) for record in lost]
