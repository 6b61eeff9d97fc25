"""What each kind of fault has done, over all storms of a run: strikes by pool, and repeats by verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.chaos.faults.kinds import KINDS
from tests.support.judge.executions import Repeat, Verdict

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

POOLS = ("solo", "threads", "prefork", "gevent", "eventlet")
#: Verdict -> the kinds of faults that it can come from.
CAUSES = {
    Verdict.RUNNING: {"kill_worker", "kill_main"},
    Verdict.LAST_ACKS: {"kill_worker", "kill_main"},
    Verdict.LAST_ACKS_BEFORE_SILENCE: {"freeze_worker", "cut_off", "stall_maintenance"},
    Verdict.PRESUMED_DEAD: {"freeze_worker", "cut_off", "stall_maintenance"},
    Verdict.REFUSED_ACK: {"kill_worker", "kill_main"},
    Verdict.CUT_OFF: {"kill_worker", "kill_main", "freeze_worker", "cut_off", "stall_maintenance"},
    Verdict.UNREAD_RESULT: {"stop_worker"},
    Verdict.CHILD_KILLED: {"kill_child"},
    Verdict.ORPHAN: {"kill_main"},
    Verdict.ROLLED_BACK: {
        *("lose_a_second", "lose_since_snapshot", "promote_lagging", "flush_all", "fail_over", "crash_primary"),
    },
}
UNKNOWN = "none of them"
#: Column -> the verdicts that it counts.
COLUMNS = {
    "repeats: running": (Verdict.RUNNING, Verdict.CHILD_KILLED, Verdict.ORPHAN),
    "had ended": (
        *(Verdict.LAST_ACKS, Verdict.REFUSED_ACK, Verdict.LAST_ACKS_BEFORE_SILENCE, Verdict.CUT_OFF, Verdict.UNREAD_RESULT),
    ),
    "presumed dead": (Verdict.PRESUMED_DEAD,),
    "data lost": (Verdict.ROLLED_BACK,),
    "illegal": (Verdict.ILLEGAL,),
}


class Tally:
    """Counts of a run."""

    def __init__(self) -> None:
        #: (kind, pool) -> strikes; (kind, verdict) -> repeats.
        self.strikes: Counter[tuple[str, str]] = Counter()
        self.repeats: Counter[tuple[str, Verdict]] = Counter()

    def add(self, pool: str, storm: Storm, repeats: Iterable[Repeat]) -> None:
        """Count a storm."""
        for kind, times in storm.done.items():
            self.strikes[kind, pool] += times
        for repeat in repeats:
            self.repeats[cause(storm, repeat), repeat.verdict] += 1

    def table(self) -> list[str]:
        """Return the lines of a Markdown table; none where no storm was counted."""
        if not self.strikes:
            return []
        heads = ["fault", *POOLS, *COLUMNS]
        rows = [self._row(kind) for kind in (*KINDS, UNKNOWN)]
        rows.append(["all", *(str(sum(int(row[column] or 0) for row in rows)) for column in range(1, len(heads)))])
        return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]

    def _row(self, kind: str) -> list[str]:
        strikes = [self.strikes[kind, pool] for pool in POOLS]
        repeats = [sum(self.repeats[kind, verdict] for verdict in verdicts) for verdicts in COLUMNS.values()]
        return [kind, *(str(number or "") for number in strikes + repeats)]


def cause(storm: Storm, repeat: Repeat) -> str:
    """Return the kind of fault that a repeat comes from: the last that may be its cause, and met its workers."""
    workers = {repeat.before.worker, repeat.again.worker, 0}
    found = [
        happening.fault
        for happening in storm.diary
        if happening.fault in CAUSES.get(repeat.verdict, ())
        and happening.worker in workers
        and happening.at <= repeat.again.start
    ]
    return found[-1] if found else UNKNOWN
