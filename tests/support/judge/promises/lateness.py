"""Lateness: a message comes soon after its eta, and soon after the death or silence of the consumer that held it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.support.judge.promises.delays import due_at
from tests.support.judge.records import CONFIRMED, DELIVERED, GONE, KILLED, PUBLISH, SILENT, History, Record
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "nothing late"


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each message that came more than `rules.late_s` seconds after it could."""
    for publish, delivery, late_s in _after_their_eta(history):
        if late_s > rules.late_s:
            yield violation(NAME, f"{delivery.name!r} came {late_s:.1f} s after its eta", publish, delivery)
    for lost, end, again, late_s in _after_their_consumer(history):
        if late_s > rules.late_s:
            yield violation(NAME, f"{again.name!r} came again {late_s:.1f} s after its consumer", lost, end, again)


def latest_s(history: History) -> tuple[float, float]:
    """Return by how many seconds the latest message came after its eta, and after its consumer; 0 without one."""
    etas = (late_s for _, _, late_s in _after_their_eta(history))
    return max(etas, default=0.0), max((late_s for *_, late_s in _after_their_consumer(history)), default=0.0)


def _after_their_eta(history: History) -> Iterator[tuple[Record, Record, float]]:
    """Yield a publish with an eta, its first delivery, and the seconds between them."""
    # A name that is published again does not tell which message came.
    times = Counter(publish.name for publish in history.of(PUBLISH))
    for publish in history.of(PUBLISH):
        outcome = history.outcome(publish)
        if not publish.detail.get("eta") or outcome is None or outcome.kind != CONFIRMED or times[publish.name] > 1:
            continue
        delivery = next((record for record in history.by_name[publish.name] if record.kind == DELIVERED), None)
        if delivery is not None and not history.rolled_back_between(publish.tick, delivery.tick):
            yield publish, delivery, delivery.tick - max(outcome.tick, due_at(publish, delivery))


def _after_their_consumer(history: History) -> Iterator[tuple[Record, Record, Record, float]]:
    """Yield a delivery, the end of its consumer, the next delivery, and the seconds between these."""
    for holdings in history.holdings.values():
        for before, again in pairwise(holdings):
            end, later = before.end, again.delivery
            is_plain = end is not None and end.kind in {KILLED, SILENT, GONE} and before.delivery.queue == later.queue
            if end is not None and is_plain and not history.rolled_back_between(before.delivery.tick, later.tick):
                yield before.delivery, end, later, later.tick - end.tick
