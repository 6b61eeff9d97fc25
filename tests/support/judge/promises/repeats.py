"""Nothing twice without a reason: a repeat needs a death, a silence, a requeue; where the run allows it, a lost connection."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.support.judge.executions import Repeat, Verdict, repeats_of
from tests.support.judge.records import (
    ACKED,
    CANCELLED,
    DISCONNECTED,
    HEARD,
    KILLED,
    LOST,
    REJECTED,
    RELEASED,
    REQUEUED,
    SILENT,
    STOPPED,
    History,
    Record,
)
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "nothing twice without a reason"
#: Seconds between a signal and what a history says of it.
SLACK_S = 0.05


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each delivery after an ack, each claim number that was given twice, each run without a reason."""
    for holdings in history.holdings.values():
        for before, again in pairwise(holdings):
            first, second = before.delivery, again.delivery
            if history.rolled_back_between(first.tick, second.tick) or first.queue != second.queue:
                # A dead letter begins anew in its other queue.
                continue
            if first.claim and second.claim and second.claim <= first.claim:
                text = f"{first.name!r} was delivered twice with claim {second.claim}"
                yield violation(NAME, text, first, before.end, second)
                continue
            settled = _settled_between(history, first, second)
            if settled is not None and not _excused(history, first, second, rules):
                what = "ack" if settled.kind == ACKED else "rejection"
                yield violation(NAME, f"{first.name!r} was delivered again after its {what}", first, settled, second)
    for repeat in repeats_of(history, rules):
        if repeat.verdict is Verdict.ILLEGAL and not _may_run_again(history, repeat, rules):
            yield violation(NAME, f"{repeat.before.task!r} was run again", *history.of_message(repeat.before.task))


def _settled_between(history: History, first: Record, second: Record) -> Record | None:
    return next(
        (
            record
            for record in history.by_tag[first.tag]
            if record.kind in {ACKED, REJECTED} and record.process == first.process and first.tick <= record.tick < second.tick
        ),
        None,
    )


def _excused(history: History, first: Record, second: Record, rules: Rules) -> bool:
    """Return whether the ack may have been lost: its process died, or was out of reach, before the message came again."""
    kinds = (STOPPED,) if rules.strict else (STOPPED, DISCONNECTED)
    return bool(
        history.was_silent(first.process, first.tick - SLACK_S, second.tick)
        or history.fates(first.process, KILLED, until=second.tick)
        or history.fates(first.process, *kinds, since=first.tick - SLACK_S, until=second.tick)
    )


def _may_run_again(history: History, repeat: Repeat, rules: Rules) -> bool:
    before, again = repeat.before, repeat.again
    given_back = any(
        before.start <= record.tick <= again.start
        and (record.kind in {REQUEUED, RELEASED} or (record.kind == LOST and not rules.strict))
        for record in history.of_message(before.task)
        if record.process == before.worker
    )
    if given_back or rules.strict:
        return given_back
    window = {"since": before.start - SLACK_S, "until": again.start}
    return bool(
        history.fates(before.worker, KILLED, STOPPED, SILENT, HEARD, DISCONNECTED, CANCELLED, **window)
        or history.fates(again.worker, SILENT, HEARD, **window)
    )
