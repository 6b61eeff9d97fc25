"""Single active consumer: of such a queue another consumer gets messages only after the active one has left or died."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.records import (
    CANCELLED,
    DECLARED,
    DELIVERED,
    DISCONNECTED,
    GONE,
    HEARD,
    KILLED,
    SILENT,
    STOPPED,
    History,
    Record,
)
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "single active consumer"
ENDS = (KILLED, STOPPED, GONE, SILENT, DISCONNECTED, CANCELLED)
#: Seconds for which a consumer goes on with what it had before it was silent.
AFTERMATH_S = 2.0


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each change of the active consumer without a reason."""
    single = {record.queue for record in history.of(DECLARED) if record.detail.get("x-single-active-consumer")}
    turns: dict[str, tuple[Record, Record]] = {}
    for delivery in history.of(DELIVERED):
        if delivery.queue not in single:
            continue
        first, last = turns.get(delivery.queue, (delivery, delivery))
        if delivery.session == last.session:
            turns[delivery.queue] = (first, delivery)
            continue
        if history.fates(delivery.process, HEARD, since=delivery.tick - AFTERMATH_S, until=delivery.tick):
            # It was frozen in its turn, and finds what it had got.
            continue
        ends = history.fates(last.process, *ENDS, since=first.tick, until=delivery.tick)
        if history.rolled_back_between(last.tick, delivery.tick):
            turns[delivery.queue] = (delivery, delivery)
            continue
        if not any(end.session in {"", last.session} for end in ends):
            text = f"{delivery.session} got {delivery.name!r} of {delivery.queue!r} while {last.session} was active"
            yield violation(NAME, text, first, last, delivery)
        turns[delivery.queue] = (delivery, delivery)
