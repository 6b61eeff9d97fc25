"""Priorities: what has a higher priority comes first, once it is ready."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.promises.order import plain_publishes
from tests.support.judge.records import DELIVERED, ROLLED_BACK, History, Record
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "higher priorities first"


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each message that was ready when its consumer asked, and came behind one of a lower priority."""
    ready = plain_publishes(history)
    # (session, queue) -> priority -> the delivery that was asked for last.
    asked: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for delivery in history.of(DELIVERED, ROLLED_BACK):
        if delivery.kind == ROLLED_BACK:
            asked.clear()
            continue
        line, priority = asked[delivery.session, delivery.queue], delivery.detail.get("priority", 0)
        publish, confirmed = ready.get(delivery.name, (None, None))
        is_first = delivery.claim == 1 and not delivery.redelivered
        if publish is not None and confirmed is not None and is_first and delivery.queue in history.may_reach(publish):
            for lower, before in line.items():
                if lower < priority and confirmed.tick < _asked_at(before) <= _asked_at(delivery):
                    text = f"{delivery.name!r} of priority {priority} came behind {before.name!r} of priority {lower}"
                    yield violation(NAME, text, publish, confirmed, before, delivery)
        if priority not in line or _asked_at(delivery) > _asked_at(line[priority]):
            line[priority] = delivery


def _asked_at(delivery: Record) -> float:
    """Return when the consumer asked for what brought the message: the server chose it after that."""
    return float(delivery.detail.get("asked_at") or delivery.tick)
