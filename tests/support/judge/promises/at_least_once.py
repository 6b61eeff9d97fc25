"""At least once: what the server has confirmed is delivered, and settled, before its queue is empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.support.judge.promises.deduplication import may_stand_for
from tests.support.judge.records import (
    ACKED,
    CHILD_KILLED,
    CONFIRMED,
    DECLARED,
    DELIVERED,
    DRAINED,
    END,
    KILLED,
    LEFT,
    NOTED_S,
    PUBLISH,
    REJECTED,
    START,
    History,
    Record,
)
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "at least once"
SETTLED = {ACKED, REJECTED, END, LEFT}
#: Seconds between the early ack of a task and its start, on a machine with much load.
BEGINS_S = 2.0


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each confirmed message that is neither settled nor left in a queue that it has to reach.

    That is known when the queue is seen empty; a strict judge wants each queue to be.
    """
    drained = {record.queue: record for record in history.of(DRAINED)}
    copies: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for publish in history.of(PUBLISH):
        if publish.detail.get("dedup"):
            copies[publish.queue, publish.detail["dedup"]].append(publish)
    # Thousands of messages may have one name.
    settled: dict[tuple[str, tuple[str, ...]], bool] = {}
    for publish, outcome in _kept(history):
        # One message may stand for several publishes with its id.
        same = copies.get((publish.queue, publish.detail.get("dedup", "")), [publish])
        made = [one for one in same if may_stand_for(history, one, publish)] if same != [publish] else same
        names = tuple(dict.fromkeys(one.name for one in made))
        for queue in history.must_reach(publish):
            seen_empty = drained.get(queue)
            is_over = seen_empty is not None and seen_empty.tick >= outcome.tick
            if not is_over and not rules.strict:
                continue
            if (queue, names) not in settled:
                settled[queue, names] = _is_settled(history, _records(history, names), queue, publish, rules)
            if settled[queue, names]:
                continue
            records = _records(history, names)
            if is_over:
                yield violation(NAME, f"{publish.name!r} was confirmed, and is gone from {queue!r}", *records, seen_empty)
            else:
                yield violation(NAME, f"{publish.name!r} is not settled, and {queue!r} was not seen empty since", *records)


def _kept(history: History) -> Iterator[tuple[Record, Record]]:
    """Yield the confirmed publishes to queues, with their confirmations, but for those that the server may have lost."""
    for publish in history.of(PUBLISH):
        outcome = history.outcome(publish)
        if outcome is None or outcome.kind != CONFIRMED or publish.detail.get("exchange"):
            continue
        replicated = bool(publish.detail.get("replicas"))
        if not any(rollback.undoes(publish.tick, outcome.tick, replicated=replicated) for rollback in history.rollbacks):
            yield publish, outcome


def _records(history: History, names: Sequence[str]) -> list[Record]:
    return [record for name in names for record in history.of_message(name)]


def _is_settled(history: History, records: Sequence[Record], queue: str, publish: Record, rules: Rules) -> bool:
    """Return whether a message, that has these records, came to its end by this queue, or by that of its dead letters."""
    queues = {queue, *_graves(history, queue)}
    deliveries = [record for record in records if record.kind == DELIVERED and record.queue in queues]
    holders, tags = {record.process for record in deliveries}, {record.tag for record in deliveries}
    for record in records:
        if (record.kind == END and record.process in holders) or (record.kind == LEFT and record.queue in queues):
            return True
        if record.kind == REJECTED and record.tag in tags:
            return True
        if record.kind == ACKED and record.tag in tags:
            # Of a task only its run proves that it is done.
            is_early = publish.detail.get("task") in rules.early
            if not rules.strict or (is_early and _died_with_it(history, records, record)):
                return True
    return False


def _graves(history: History, queue: str) -> Iterator[str]:
    """Yield where the dead letters of a queue come."""
    for record in history.of(DECLARED):
        if record.queue == queue and "x-dead-letter-routing-key" in record.detail:
            yield record.detail["x-dead-letter-routing-key"]


def _died_with_it(history: History, records: Sequence[Record], ack: Record) -> bool:
    """Return whether a task that was acked early was lost with the process that ran it, or was about to."""
    starts = [one for one in records if one.kind == START and one.process == ack.process and one.tick > ack.tick - BEGINS_S]
    start = starts[0] if starts else None
    until = ack.tick + BEGINS_S if start is None else float("inf")
    if history.fates(ack.process, KILLED, since=ack.tick - NOTED_S, until=until):
        return True
    killed = [one for one in history.of(CHILD_KILLED) if one.process == ack.process and ack.tick - NOTED_S <= one.tick <= until]
    return any(start is None or start.detail.get("pid") == one.detail["pid"] for one in killed)
