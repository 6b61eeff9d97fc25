"""Limits: a queue never has more than `x-max-length`, `x-max-pending` and `x-max-unacked` say, and keeps nothing it refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.records import CONFIRMED, DECLARED, DELIVERED, DEPTH, REFUSED, UNKNOWN, History, Record
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "limits"
#: Argument -> what of a sample of the depth it bounds.
BOUNDED = {"x-max-length": ("waiting",), "x-max-pending": ("waiting", "unacked"), "x-max-unacked": ("unacked",)}


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each limit that was passed: the first proof of it; and for each refused message that came."""
    declared = {record.queue: record for record in history.of(DECLARED)}
    told: set[tuple[str, str]] = set()
    for depth in history.of(DEPTH):
        record = declared.get(depth.queue)
        for argument, counted in BOUNDED.items():
            limit = None if record is None else record.detail.get(argument)
            found = sum(depth.detail.get(what, 0) for what in counted)
            if limit is not None and found > limit and (depth.queue, argument) not in told:
                told.add((depth.queue, argument))
                yield violation(NAME, f"{depth.queue!r} had {found} messages, {argument} is {limit}", record, depth)
    yield from _held(history, declared)
    for name, records in history.by_name.items():
        kinds = {record.kind for record in records}
        if REFUSED in kinds and DELIVERED in kinds and not kinds & {CONFIRMED, UNKNOWN}:
            yield violation(NAME, f"{name!r} was refused, and delivered", *records)


def _held(history: History, declared: dict[str, Record]) -> Iterator[Violation]:
    """Yield a violation for each queue whose consumers held more than its `x-max-unacked` at a time."""
    changes: dict[str, list[tuple[float, int, Record]]] = defaultdict(list)
    for holdings in history.holdings.values():
        for holding in holdings:
            queue, since = holding.delivery.queue, holding.delivery.tick
            if queue in declared and "x-max-unacked" in declared[queue].detail and holding.until > since:
                changes[queue] += [(since, 1, holding.delivery), (holding.until, -1, holding.delivery)]
    for queue, found in changes.items():
        limit = declared[queue].detail["x-max-unacked"]
        held: dict[str, Record] = {}
        for _, change, delivery in sorted(found, key=lambda one: one[:2]):
            if change < 0:
                held.pop(delivery.tag, None)
                continue
            held[delivery.tag] = delivery
            if len(held) > limit:
                text = f"{len(held)} messages of {queue!r} were in work, x-max-unacked is {limit}"
                yield violation(NAME, text, declared[queue], *held.values())
                break
