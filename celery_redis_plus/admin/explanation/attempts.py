"""The deliveries of a message with their ends, from its lifecycle events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_redis_plus.admin.formatting import span, visible

if TYPE_CHECKING:
    from celery_redis_plus.admin.explanation.facts import Facts
    from celery_redis_plus.events import Event

#: How a delivery ended, by the event and its reason; by the event alone for other reasons.
ENDINGS: Final = {
    ("acked", ""): "the work was done",
    ("acked", "failure"): "the task failed",
    ("acked", "retry"): "the task asked to be tried again: a new message stands for it",
    ("failed", "retry"): "the task asked to be tried again after its ack: a new message stands for it",
    ("acked", "ignored"): "the task raised Ignore",
    ("acked", "revoked"): "the task was revoked, or had expired",
    ("acked", "early"): "it was acked before the work began",
    ("recovered", "heartbeat_lost"): "its consumer was lost: no heartbeat came",
    ("recovered", "connection_lost"): "its consumer was lost: its connection broke",
    ("recovered", "not_begun"): "its consumer was lost before the work began",
    ("requeued", "handed_back"): "its consumer gave it back before the work began",
    ("requeued", "kicked"): "an operator took it from its consumer",
    ("requeued", "rejected"): "its consumer rejected it, and wants it to be delivered again",
    ("requeued", "requeue"): "its consumer wants it to be delivered again",
    ("requeued", "consumer_timeout"): "its consumer held it for longer than x-consumer-timeout",
    ("retried", "handed_back"): "its process works on it already, and gave it back",
    ("retried", "rejected"): "its consumer rejected it: it waits, and is delivered again",
    ("retried", "requeue"): "its consumer wants it to be delivered again: it waits",
    ("retried", "heartbeat_lost"): "its consumer was lost: it waits, and is delivered again",
    ("retried", "connection_lost"): "its consumer's connection broke: it waits, and is delivered again",
    ("retried", "consumer_timeout"): "its consumer held it for longer than x-consumer-timeout: it waits",
    ("dead_lettered", "delivery_limit"): "the delivery failed, and was the last one allowed",
    ("dead_lettered", "retry_policy"): "the delivery failed, and the retry policy was at its end",
    ("dead_lettered", "rejected"): "its consumer rejected it without requeue",
}
_OTHERS: Final = {
    "acked": "it was acked",
    "recovered": "its consumer was lost",
    "requeued": "it was put back",
    "retried": "it was put back to wait",
    "rejected": "its consumer rejected it",
    "dead_lettered": "it became a dead letter",
    "cancelled": "it was cancelled",
    "moved": "it went to another queue",
    "purged": "it was purged",
    "vanished": "its key was gone",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery. Times are ms since the epoch on the server's clock.

    Attributes:
        number: how often the message had been claimed by then, itself included; None where it is not known.
        worker: who had it.
        began_ms, ended_ms: from when until when; it goes on without an end.
        event, reason: the event that ended it; None while it goes on.
        error: the exception with which the work ended.
        text: how it ended, for people.
    """

    number: int | None
    worker: str | None
    began_ms: int
    ended_ms: int | None
    event: str | None
    reason: str | None
    error: str | None
    text: str


def attempts(events: Sequence[Event]) -> Iterator[Attempt]:
    """Yield the deliveries that events tell of, the first one first."""
    begun: Event | None = None
    for event in events:
        if begun is not None and event.event in _OTHERS:
            yield _ended(begun, event)
            begun = None
        if event.event == "claimed":
            if begun is not None:
                # Its end was not written (`event_log_events`).
                yield _open(begun, "its end is not among the events that are written")
            begun = event
    if begun is not None:
        yield _open(begun, "it goes on")


def _ended(begun: Event, end: Event) -> Attempt:
    text = ENDINGS.get((end.event, end.reason or ""), _OTHERS[end.event])
    if end.error:
        text += f": {visible(end.error.splitlines()[0])}"
    return Attempt(
        begun.claim, begun.worker, begun.ts // 1000, end.ts // 1000, end.event, end.reason or None, end.error or None,
        f"{text}, after {span(max(0, end.ts - begun.ts) / 1_000_000)}",
    )  # fmt: skip


def _open(begun: Event, text: str) -> Attempt:
    return Attempt(begun.claim, begun.worker, begun.ts // 1000, None, None, None, None, text)


def told(facts: Facts, found: Sequence[Attempt]) -> str:
    """Return how often a message was delivered, and what is known of the ends; '' of one that was not delivered before."""
    deliveries = max(facts.found.deliveries, facts.number("claim"))
    before = deliveries - (facts.place == "claimed")
    if before < 1:
        return ""
    text = f"it was delivered {deliveries:,} times" if deliveries > 1 else "it was delivered once"
    if len(found) >= deliveries:
        return text
    parts = [
        f"{count:,} {what}"
        for count, what in (
            (facts.found.failures, "failed"),
            (facts.number("requeues"), "ended with a wish for another delivery"),
            (facts.number("unbegun"), "were lost before the work began"),
        )
        if count
    ]
    text += f"; {', '.join(parts)}" if parts else ""
    if found:
        return f"{text}; the event log has {len(found):,} of the deliveries"
    return f"{text}; when and where, an event log would tell (x-event-log)"
