"""Routing: a message comes by the queues that its exchange and key name, as a dead letter by theirs, and by no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.records import BOUND, DECLARED, DELIVERED, PUBLISH, History
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "routing"


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each delivery by a queue that the message cannot have come to."""
    graves = {
        record.detail["x-dead-letter-routing-key"]
        for record in history.of(DECLARED)
        if "x-dead-letter-routing-key" in record.detail
    }
    known = {record.detail["exchange"] for record in history.of(BOUND)}
    reached: dict[str, set[str]] = {}
    for publish in history.of(PUBLISH):
        # Of an exchange whose bindings nobody noted nothing can be said.
        is_known = not publish.detail.get("exchange") and publish.detail.get("via", "") in {"", *known}
        reached.setdefault(publish.name, set()).update(history.may_reach(publish) if is_known else {""})
    for delivery in history.of(DELIVERED):
        queues = reached.get(delivery.name)
        if queues is None or "" in queues or delivery.queue in queues | graves:
            continue
        publishes = [record for record in history.by_name[delivery.name] if record.kind == PUBLISH]
        text = f"{delivery.name!r} came by {delivery.queue!r}, and was published to {sorted(queues)}"
        yield violation(NAME, text, *publishes, delivery)
