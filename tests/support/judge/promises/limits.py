"""Limits: a queue never has more than its arguments say, nor a group or a limiter more in work; what was refused is not kept."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.records import CONFIRMED, DECLARED, DELIVERED, DEPTH, PUBLISH, REFUSED, UNKNOWN, History, Record
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "limits"
#: Argument -> what of a sample of the depth it bounds.
BOUNDED = {"x-max-length": ("waiting",), "x-max-pending": ("waiting", "unacked"), "x-max-unacked": ("unacked",)}

#: A limiter of messages in work, as `x-limiter` has it, without a key: its name and number.
CONCURRENCY = re.compile(r"(\w+):concurrency=(\d+)")


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
    """Yield a violation for each queue, group and limiter of which more was held at a time than its limit says."""
    changes: dict[tuple[str, int], list[tuple[float, int, Record]]] = defaultdict(list)
    for holdings in history.holdings.values():
        for holding in holdings:
            since = holding.delivery.tick
            for bound in _bounds(history, declared, holding.delivery) if holding.until > since else ():
                changes[bound] += [(since, 1, holding.delivery), (holding.until, -1, holding.delivery)]
    for (what, limit), found in changes.items():
        held: dict[str, Record] = {}
        for _, change, delivery in sorted(found, key=lambda one: one[:2]):
            if change < 0:
                held.pop(delivery.tag, None)
                continue
            held[delivery.tag] = delivery
            if len(held) > limit:
                yield violation(NAME, f"{len(held)} messages of {what} were in work, {limit} may be", *held.values())
                break


def _bounds(history: History, declared: dict[str, Record], delivery: Record) -> Iterator[tuple[str, int]]:
    """Yield what bounds how many messages like this one are in work, and that number."""
    queue = delivery.queue
    arguments = declared[queue].detail if queue in declared else {}
    if "x-max-unacked" in arguments:
        yield repr(queue), arguments["x-max-unacked"]
    publish = next((record for record in history.by_name.get(delivery.name, ()) if record.kind == PUBLISH), None)
    said = {} if publish is None else publish.detail
    if "x-group-concurrency" in arguments and "group" in said:
        yield f"group {said['group']!r} of {queue!r}", arguments["x-group-concurrency"]
    limiter = CONCURRENCY.fullmatch(said.get("limiter", ""))
    if limiter:
        yield f"limiter {limiter[1]!r}", int(limiter[2])
