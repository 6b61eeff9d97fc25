"""Broadcasts: a subscriber gets all that are published while it subscribes, in order; what comes again is flagged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.records import (
    CANCELLED,
    CONFIRMED,
    CONSUMING,
    DELIVERED,
    DRAINED,
    KILLED,
    PUBLISH,
    STOPPED,
    History,
    Record,
)
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "broadcasts without gaps"


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each gap, each broadcast out of order, and each second one without a flag."""
    sent: dict[str, list[tuple[Record, Record]]] = {}
    for publish in history.of(PUBLISH):
        outcome = history.outcome(publish)
        if not publish.detail.get("exchange") or outcome is None or outcome.kind != CONFIRMED:
            continue
        if not any(rollback.undoes(publish.tick, outcome.tick, replicated=False) for rollback in history.rollbacks):
            sent.setdefault(publish.detail["exchange"], []).append((publish, outcome))
    for exchange, broadcasts in sent.items():
        received: dict[tuple[int, str], list[Record]] = {}
        for record in history.of(CONSUMING):
            if exchange in record.detail.get("exchanges", ()):
                received.setdefault((record.process, record.queue), [record])
        for record in history.of(DELIVERED):
            if record.detail.get("exchange") == exchange and (record.process, record.queue) in received:
                received[record.process, record.queue].append(record)
        drained = [record for record in history.of(DRAINED) if record.queue == exchange]
        for (process, _), (begin, *deliveries) in received.items():
            again = [record.tick for record in history.of(CONSUMING) if (record.process, record.queue) == (process, begin.queue)]
            # After a cancel it may have come back.
            left = history.fates(process, KILLED, STOPPED) or history.fates(process, CANCELLED, since=again[-1])
            end = left[0] if left else drained[-1] if drained else None
            yield from _gaps(broadcasts, begin, deliveries, end)
            yield from _order({publish.name: (publish, outcome) for publish, outcome in broadcasts}, deliveries)


def _gaps(
    broadcasts: list[tuple[Record, Record]], begin: Record, deliveries: list[Record], end: Record | None
) -> Iterator[Violation]:
    got = {record.name for record in deliveries}
    came = [publish.tick for publish, _ in broadcasts if publish.name in got]
    # What was confirmed before the last that came was published, and, of a subscriber that is there at the end, all.
    until = max(came, default=0.0)
    if end is not None and end.kind == DRAINED:
        until = end.tick
    for publish, outcome in broadcasts:
        if publish.tick > begin.tick and outcome.tick < until and publish.name not in got:
            text = f"{publish.name!r} never came to {begin.queue!r} in {begin.process}"
            yield violation(NAME, text, begin, publish, outcome, *deliveries[-1:], end)


def _order(broadcasts: dict[str, tuple[Record, Record]], deliveries: list[Record]) -> Iterator[Violation]:
    latest: tuple[Record, Record] | None = None
    seen: dict[str, Record] = {}
    for record in deliveries:
        if record.redelivered or record.name not in broadcasts:
            continue
        publish, outcome = broadcasts[record.name]
        if record.name in seen:
            yield violation(NAME, f"{record.name!r} came twice without a flag", seen[record.name], record)
        elif latest is not None and outcome.tick < latest[0].tick:
            text = f"{record.name!r} was published before {latest[1].name!r}, and came after it"
            yield violation(NAME, text, publish, outcome, *latest, record)
        seen[record.name] = record
        if latest is None or publish.tick > latest[0].tick:
            latest = (publish, record)
