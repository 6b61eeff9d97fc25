"""Runs of tasks: which repeats had to be, by what was done to the workers, and which had not."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from tests.support.judge.lives import Life, lives_of
from tests.support.judge.records import DELIVERED, END, PUBLISH, REJECTED, REQUEUED, START

if TYPE_CHECKING:
    from tests.support.judge.records import History, Rollback
    from tests.support.judge.rules import Rules


class Entry(Protocol):
    """The start or the end of a run (also by a rejection: `REQUEUED`, `REJECTED`); `worker` is the main process."""

    event: str
    task: str
    pid: int
    worker: int
    tick: float


#: Seconds between a signal and what the ledger says of it.
SLACK_S = 0.05
#: Seconds for which a result may lie in the pipe of a child.
UNREAD_S = 1.0
#: Seconds for which an ack may be on its way on a machine with much load: it is deferred where its connection is busy.
UNSENT_S = 2.0
#: Seconds until a worker has sent the acks again that were refused: Celery tries to reconnect every 2 s.
ACKED_AGAIN_S = 5.0
#: Seconds for which a worker goes on with what it held before it was silent.
AFTERMATH_S = 2.0


class Verdict(Enum):
    """Why a task was run once more."""

    #: Its worker was killed while it ran.
    RUNNING = "running at the kill"
    #: It was among the last that ended before its worker was killed: the ack had not left, or nobody had read the result.
    LAST_ACKS = "ended within the last acks before the kill"
    #: The same, before its worker stood still or was cut off.
    LAST_ACKS_BEFORE_SILENCE = "ended within the last acks before its worker fell silent"
    #: One of its two workers held it and stood still, or was cut off, for so long that others had to take it.
    PRESUMED_DEAD = "held by a worker that gave no sign of life"
    #: Its worker was stopped warmly and left the result unread in the pipe of a prefork process.
    UNREAD_RESULT = "result left in the pipe at a warm shutdown (prefork)"
    #: The pool process that ran it was killed, and its worker lives.
    CHILD_KILLED = "in a pool process that was killed"
    #: One of its two runs was in a pool process whose worker had been killed.
    ORPHAN = "in a pool process that outlived its worker"
    #: The task itself rejected it, and it came again, or as a dead letter.
    RETURNED = "rejected by its task"
    #: The server lost what it knew of the claim or the ack.
    ROLLED_BACK = "undone when the server lost data"
    #: Its worker was killed before the server, which had refused its ack, took writes again.
    REFUSED_ACK = "ended while the server refused writes, before the kill"
    #: Its worker had no connection, and was killed or fell silent before it could send the ack.
    CUT_OFF = "ended without a connection, before the kill"
    #: None of these.
    ILLEGAL = "illegal"


@dataclass(frozen=True)
class Execution:
    """One run of a task; `end` is None where it was not carried to its end, `delivered` is when its worker had got it.

    `returned`: the task rejected its message, and ended with that.
    """

    task: str
    worker: int
    pid: int
    start: float
    end: float | None
    delivered: float
    returned: bool = False


@dataclass(frozen=True)
class Repeat:
    """A run of a task that was not its first, and why."""

    before: Execution
    again: Execution
    verdict: Verdict


#: (task, worker) -> when the worker got the task.
Deliveries = Mapping[tuple[str, int], Sequence[float]]


def executions(entries: Iterable[Entry], deliveries: Deliveries) -> dict[str, list[Execution]]:
    """Return every task's executions in the order of their starts."""
    open_starts: dict[tuple[str, int], Entry] = {}
    found: dict[str, list[Execution]] = {}

    def add(start: Entry, end: float | None, *, returned: bool = False) -> None:
        before = [tick for tick in deliveries.get((start.task, start.worker), ()) if tick <= start.tick]
        delivered = max(before, default=start.tick)
        found.setdefault(start.task, []).append(
            Execution(start.task, start.worker, start.pid, start.tick, end, delivered, returned)
        )

    # The files are read one by one, each in its own order.
    for entry in sorted(entries, key=lambda entry: entry.tick):
        key = (entry.task, entry.pid)
        if entry.event == START:
            if key in open_starts:
                add(open_starts[key], None)
            open_starts[key] = entry
        elif entry.event in {END, REQUEUED, REJECTED} and key in open_starts:
            add(open_starts.pop(key), entry.tick, returned=entry.event != END)
    for start in open_starts.values():
        add(start, None)
    for runs in found.values():
        runs.sort(key=lambda run: run.start)
    return found


class Judgement:
    """Passes a verdict on each repeat of a run."""

    def __init__(
        self,
        lives: Iterable[Life],
        *,
        acks: int,
        rollbacks: Sequence[Rollback] = (),
        refusals: Sequence[tuple[float, float]] = (),
        deliveries: Deliveries | None = None,
    ) -> None:
        """Judge by `lives`, `rollbacks` and `refusals` (see `History`); of a killed worker the last `acks` tasks that ended may
        run again.
        """
        self._rollbacks, self._refusals, self._deliveries = rollbacks, refusals, deliveries or {}
        self._lives = {life.worker: life for life in lives}
        self._acks = acks
        self._ends: dict[int, list[float]] = {}

    def repeats(self, entries: Iterable[Entry]) -> list[Repeat]:
        """Return every repeat with its verdict."""
        by_task = executions(entries, self._deliveries)
        self._ends = {}
        for runs in by_task.values():
            for run in runs:
                if run.end is not None:
                    self._ends.setdefault(run.worker, []).append(run.end)
        for ends in self._ends.values():
            ends.sort()
        return [
            Repeat(before, again, self._verdict(before, again)) for runs in by_task.values() for before, again in pairwise(runs)
        ]

    def _verdict(self, before: Execution, again: Execution) -> Verdict:
        if before.returned and before.end is not None and before.end <= again.start:
            return Verdict.RETURNED
        life = self._lives.get(before.worker)
        if life is None:
            return Verdict.ILLEGAL
        return self._verdict_on_deaths(before, again, life) or self._verdict_on_silence(before, again, life)

    def _verdict_on_silence(self, before: Execution, again: Execution, life: Life) -> Verdict:
        if before.end is not None and before.end <= again.start and _was_unable(before, life, life.cut_off):
            return Verdict.CUT_OFF
        # Before the kill that may have followed: what the network held back was no longer the worker's to send.
        if any(self._is_among_the_last(before, since) for since, _ in life.silent):
            return Verdict.LAST_ACKS_BEFORE_SILENCE
        if life.killed_at is not None and self._is_among_the_last(before, life.killed_at):
            # What others had taken and begun by then is not the kill's doing.
            taken = again.start < life.killed_at and self._was_silent(before, aftermath_s=0)
            return Verdict.PRESUMED_DEAD if taken else Verdict.LAST_ACKS
        if self._was_silent(before) or self._was_silent(again):
            return Verdict.PRESUMED_DEAD
        return Verdict.UNREAD_RESULT if _may_be_unread(before, life) else Verdict.ILLEGAL

    def _verdict_on_deaths(self, before: Execution, again: Execution, life: Life) -> Verdict | None:
        """Return the verdict where the run was lost with a server's data or a process; None where its end was told."""
        if any(_was_undone(before, again, rollback, self._refusals) for rollback in self._rollbacks):
            return Verdict.ROLLED_BACK
        child_killed_at = life.children_killed.get(before.pid)
        if child_killed_at is not None and (before.end is None or before.end > _last_read(life, child_killed_at) - UNREAD_S):
            return Verdict.CHILD_KILLED
        if life.killed_at is not None and before.end is None:
            return Verdict.RUNNING
        if _was_unable(before, life, self._refusals):
            return Verdict.REFUSED_ACK
        orphaned = _is_orphan(before, life) or _is_orphan(again, self._lives.get(again.worker))
        return Verdict.ORPHAN if orphaned else None

    def _is_among_the_last(self, run: Execution, at: float) -> bool:
        """Return whether not more than so many acks' worth of tasks ended between this one and `at`, in its worker.

        Or whether it ended so late that its ack may have been on its way: how often that happens, a test has to bound.
        """
        if run.end is None or run.end > at + SLACK_S:
            return False
        if self._acks and run.end >= at - UNSENT_S:
            return True
        ends = self._ends[run.worker]
        return bisect_right(ends, at + SLACK_S) - bisect_left(ends, run.end) <= self._acks

    def _was_silent(self, run: Execution, aftermath_s: float = AFTERMATH_S) -> bool:
        """Return whether the run's worker had the task while it gave no sign of life, or not longer than `aftermath_s` later."""
        life = self._lives.get(run.worker)
        if life is None:
            return False
        end = run.start if run.end is None else run.end
        # What it ran next after its silence is what it had taken before.
        return any(run.start <= until + aftermath_s and end >= since for since, until in life.silent)


def _was_undone(before: Execution, again: Execution, rollback: Rollback, refusals: Iterable[tuple[float, float]]) -> bool:
    """Return whether the server may have forgotten what it knew of the run `before`.

    An ack that it refused it was told when it took writes again.
    """
    end = told_at = float("inf") if before.end is None else before.end
    for since, until in refusals:
        if since - UNSENT_S <= end <= until:
            told_at = max(told_at, until + ACKED_AGAIN_S)
    return rollback.undoes(before.delivered, told_at, replicated=False) and again.start >= rollback.since


def _last_read(life: Life, at: float) -> float:
    """Return when a main process read its children's results last, before a tick: while it connects anew, it reads none."""
    return min([at, *(since for since, until in life.cut_off if since <= at <= until)])


def _was_unable(run: Execution, life: Life, spells: Iterable[tuple[float, float]]) -> bool:
    """Return whether the ack may not have arrived before one of the spells in which none did, nor been sent again in time.

    In time: before the process was killed or fell silent.
    """
    if run.end is None:
        return False
    for since, until in spells:
        gone_at = life.gone_at(since)
        if gone_at is not None and since - UNSENT_S <= run.end <= gone_at <= until + ACKED_AGAIN_S:
            return True
    return False


def _is_orphan(run: Execution, life: Life | None) -> bool:
    """Return whether a child ran the task, or began it, after its main process was killed."""
    if life is None or life.killed_at is None or run.pid == run.worker:
        return False
    return run.end is None or run.end >= life.killed_at - SLACK_S


def _may_be_unread(run: Execution, life: Life) -> bool:
    """Return whether a child ended the task when its parent did not look any more."""
    is_child = run.pid != run.worker
    return is_child and life.stopped_at is not None and run.end is not None and run.end >= life.stopped_at - SLACK_S


def count(repeats: Iterable[Repeat]) -> dict[Verdict, int]:
    """Return how often each verdict was passed."""
    counts = Counter(repeat.verdict for repeat in repeats)
    return {verdict: counts[verdict] for verdict in Verdict}


@dataclass(slots=True)
class _Step:
    event: str
    task: str
    pid: int
    worker: int
    tick: float


def repeats_of(history: History, rules: Rules) -> list[Repeat]:
    """Return the repeats of a history; its deaths and silences decide on the verdicts.

    What was published more than once, e.g. because it was retried, may run more than once; so may what goes to several queues.
    """
    copies: Counter[str] = Counter()
    for record in history.of(PUBLISH):
        copies[record.name] += max(1, len(history.may_reach(record)))
    steps = [
        _Step(record.kind, record.name, record.detail.get("pid", record.process), record.process, record.tick)
        for record in history.of(START, END, REQUEUED, REJECTED)
        if record.name and copies[record.name] <= 1
    ]
    deliveries: dict[tuple[str, int], list[float]] = {}
    for record in history.of(DELIVERED):
        deliveries.setdefault((record.name, record.process), []).append(record.tick)
    judgement = Judgement(
        lives_of(history),
        acks=rules.acks,
        rollbacks=history.rollbacks,
        refusals=history.refusals,
        deliveries=deliveries,
    )
    return judgement.repeats(steps)
