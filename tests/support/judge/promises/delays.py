"""Delays: nothing is delivered, or begun, before its eta."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.judge.records import DELIVERED, PUBLISH, START, History, Record
from tests.support.judge.rules import CLOCK_S, Rules
from tests.support.judge.verdict import Violation, violation

NAME = "nothing before its eta"


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each message that came before its eta."""
    first: dict[str, Record] = {}
    for publish in history.of(PUBLISH):
        eta = publish.detail.get("eta", 0.0)
        if publish.name not in first or eta < first[publish.name].detail.get("eta", 0.0):
            first[publish.name] = publish
    for record in history.of(DELIVERED, START):
        made = first.get(record.name)
        if made is None or not made.detail.get("eta") or not record.time:
            continue
        early = due_at(made, record) - history.ahead_s(made.tick, record.tick) - CLOCK_S - record.tick
        if early > 0:
            yield violation(NAME, f"{record.name!r} came {early:.3f} s before its eta", made, record)


def due_at(publish: Record, record: Record) -> float:
    """Return when a publish is due, in ticks; by its publisher's clock: that of the process which has `record` may be stepped."""
    noted = publish if publish.time else record
    return float(publish.detail["eta"] - noted.time + noted.tick)
