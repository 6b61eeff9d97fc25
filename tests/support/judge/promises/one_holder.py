"""One holder: no message is with two living consumers at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.support.judge.executions import Verdict, repeats_of
from tests.support.judge.records import LOST, START, History
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "one living holder"
#: A run whose process was killed, or gave no sign of life, may overlap with the next one.
EXCUSED = (
    *(Verdict.RUNNING, Verdict.PRESUMED_DEAD, Verdict.LAST_ACKS_BEFORE_SILENCE),
    *(Verdict.CHILD_KILLED, Verdict.ORPHAN, Verdict.ROLLED_BACK),
)


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each delivery of a message that another consumer held, and each run beside another one."""
    for holdings in history.holdings.values():
        for before, again in pairwise(holdings):
            first, second = before.delivery, again.delivery
            if first.session == second.session or second.tick >= before.until:
                continue
            if second.tick < first.tick and history.rolled_back_between(second.tick, first.tick):
                # Its reply came just after the server had lost the claim, and counted anew.
                continue
            if before.end is not None and before.end.kind == LOST and not rules.strict:
                continue
            yield violation(NAME, f"{first.name!r} was delivered while {first.process} held it", first, second, before.end)
    for repeat in repeats_of(history, rules):
        run, other = repeat.before, repeat.again
        if run.end is None or run.end <= other.start or repeat.verdict in EXCUSED:
            continue
        records = history.of_message(run.task)
        if any(record.kind == LOST for record in records) and not rules.strict:
            continue
        starts = [record for record in records if record.kind == START]
        yield violation(NAME, f"{run.task!r} ran in {run.worker} and {other.worker} at a time", *starts)
