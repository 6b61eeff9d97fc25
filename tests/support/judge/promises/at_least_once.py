"""At least once: what the server has confirmed is delivered, and settled, before its queue is empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.records import ACKED, CONFIRMED, DRAINED, END, LEFT, PUBLISH, REJECTED, History, Record
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "at least once"
SETTLED = {ACKED, REJECTED, END, LEFT}


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each confirmed message that was neither settled nor left when its queue was seen empty."""
    drained = {record.queue: record for record in history.of(DRAINED)}
    copies: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for publish in history.of(PUBLISH):
        if publish.detail.get("dedup"):
            copies[publish.queue, publish.detail["dedup"]].append(publish)
    for publish in history.of(PUBLISH):
        outcome = history.outcome(publish)
        if outcome is None or outcome.kind != CONFIRMED or publish.detail.get("exchange"):
            continue
        seen_empty = drained.get(publish.queue)
        if seen_empty is None or seen_empty.tick < outcome.tick:
            continue
        replicated = bool(publish.detail.get("replicas"))
        if any(rollback.undoes(publish.tick, outcome.tick, replicated=replicated) for rollback in history.rollbacks):
            continue
        # One message may stand for several publishes with its id.
        made = copies.get((publish.queue, publish.detail.get("dedup", "")), [publish])
        records = [record for one in made for record in history.of_message(one.name)]
        if not any(record.kind in SETTLED for record in records):
            text = f"{publish.name!r} was confirmed, and is gone"
            yield violation(NAME, text, *records, seen_empty)
