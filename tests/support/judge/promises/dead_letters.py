"""Dead letters: what is rejected, or fails too often, comes into the dead-letter queue; nothing else does, and not later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.judge.executions import ACKED_AGAIN_S
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
    PUBLISH,
    REJECTED,
    REQUEUED,
    SILENT,
    History,
    Record,
)
from tests.support.judge.verdict import Violation, violation

if TYPE_CHECKING:
    from tests.support.judge.rules import Rules

NAME = "dead letters"
#: Why a message may fail without a word of its consumer.
DEATHS = (KILLED, CHILD_KILLED, SILENT)


def check(history: History, rules: Rules) -> Iterator[Violation]:
    """Yield a violation for each dead letter that never came, each that had no reason, and each message that failed too often."""
    declared = {record.queue: record for record in history.of(DECLARED) if "x-dead-letter-routing-key" in record.detail}
    drained = {record.queue: record for record in history.of(DRAINED)}
    for publish in history.of(PUBLISH):
        queue = declared.get(publish.queue)
        if queue is None:
            continue
        graves = queue.detail["x-dead-letter-routing-key"]
        records = history.of_message(publish.name)
        ends = [drained[one] for one in (publish.queue, graves) if one in drained]
        if len(ends) == 2 and _must_come(history, publish, min(ends, key=lambda end: end.tick)):
            reached = any(record.kind in {ACKED, END, LEFT} for record in records)
            if not reached and any(record.kind == REJECTED for record in records):
                yield violation(NAME, f"{publish.name!r} was rejected, and is not in {graves!r}", *records, *ends)
        yield from _without_a_reason(history, publish, graves, records)
        yield from _too_often(history, queue, publish, records)


def _must_come(history: History, publish: Record, seen_empty: Record) -> bool:
    outcome = history.outcome(publish)
    if outcome is None or outcome.kind != CONFIRMED or outcome.tick > seen_empty.tick:
        return False
    return not any(rollback.undoes(publish.tick, outcome.tick, replicated=False) for rollback in history.rollbacks)


def _without_a_reason(history: History, publish: Record, graves: str, records: list[Record]) -> Iterator[Violation]:
    """Yield a violation where a message is a dead letter that neither was given back nor had a consumer that died."""
    died = next((record for record in records if record.kind == DELIVERED and record.queue == graves), None)
    if died is None or any(record.kind in {REJECTED, REQUEUED} and record.tick <= died.tick for record in records):
        return
    if not any(publish.tick <= fate.tick <= died.tick for fate in history.of(*DEATHS)):
        yield violation(NAME, f"{publish.name!r} became a dead letter for no reason", *records)


def _too_often(history: History, queue: Record, publish: Record, records: list[Record]) -> Iterator[Violation]:
    """Yield a violation where a message was requeued more often than its limit says, by requeues that certainly arrived."""
    limit = queue.detail.get("x-delivery-limit")
    again = [record for record in records if record.kind == REQUEUED and record.tag and _arrived(history, record)]
    if limit is None or len(again) <= limit or history.rolled_back_between(publish.tick, again[-1].tick):
        return
    yield violation(NAME, f"{publish.name!r} failed {len(again)} times, x-delivery-limit is {limit}", queue, *again)


def _arrived(history: History, requeue: Record) -> bool:
    """Return whether a requeue certainly came to the server: its process was there for long enough."""
    until = requeue.tick + ACKED_AGAIN_S
    silent = history.was_silent(requeue.process, requeue.tick - ACKED_AGAIN_S, until)
    return not silent and not history.fates(requeue.process, KILLED, since=requeue.tick, until=until)
