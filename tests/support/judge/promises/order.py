"""Order: one consumer gets the messages of a priority in the order in which they were published, redeliveries aside.

Messages of a group or of a limiter may wait while others pass: they have their order among themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.records import CONFIRMED, DELIVERED, PUBLISH, ROLLED_BACK, History, Record
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "order within a priority"


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each message that came behind one whose publish began after its own was confirmed."""
    published = plain_publishes(history)
    latest: dict[tuple[object, ...], tuple[Record, Record]] = {}
    for delivery in history.of(DELIVERED, ROLLED_BACK):
        if delivery.kind == ROLLED_BACK:
            # What was delivered since is first in its queue again.
            latest.clear()
            continue
        found = published.get(delivery.name)
        if found is None or delivery.claim != 1 or delivery.redelivered:
            continue
        publish, confirmed = found
        if delivery.queue not in history.may_reach(publish):
            # A dead letter, in the order of the deaths.
            continue
        own = (publish.detail.get("group"), publish.detail.get("limiter"))
        line = (delivery.session, delivery.queue, delivery.detail.get("priority", 0), *own)
        before = latest.get(line)
        if before is not None and confirmed.tick < before[0].tick:
            text = f"{delivery.name!r} was published before {before[1].name!r}, and came after it"
            yield violation(NAME, text, publish, confirmed, before[0], before[1], delivery)
        if before is None or publish.tick > before[0].tick:
            latest[line] = (publish, delivery)


def plain_publishes(history: History) -> dict[str, tuple[Record, Record]]:
    """Return the publishes of messages that were ready once they were confirmed, and their confirmations, by their names."""
    # A name that is published again says nothing about order.
    times = Counter(publish.name for publish in history.of(PUBLISH))
    found: dict[str, tuple[Record, Record]] = {}
    for publish in history.of(PUBLISH):
        outcome = history.outcome(publish)
        # A task that has expired comes first, to be revoked.
        plain = not any(publish.detail.get(one) for one in ("eta", "exchange", "expires"))
        if outcome is not None and outcome.kind == CONFIRMED and plain and times[publish.name] == 1:
            found[publish.name] = (publish, outcome)
    return found
