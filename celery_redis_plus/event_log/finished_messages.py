"""A finished message as one row: what its lifecycle events add up to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from celery_redis_plus.events import CLAIMED, DEAD, DELAYED, FAILED_DELIVERY, GONE, READY, TRANSITIONS, Column, Event, shown_state

#: The columns of a row.
FINISHED = (
    Column("id", "text", "The message's id."),
    Column("task_id", "text", "Celery's task id."),
    Column("task", "text", "The task's name."),
    Column("state", "text", "COMPLETED, FAILED, DEAD, RETRIED or MOVED."),
    Column("event", "text", "The event that ended it."),
    Column("reason", "text", "Its reason; empty on `acked` means that the work was done."),
    Column("error", "text", "The exception that the task ended with, `ValueError: its message`."),
    Column("worker", "text", "Who claimed it last."),
    Column("published_at", "ms", "When it was published."),
    Column("first_delivery_at", "us", "When it was claimed first."),
    Column("last_delivery_at", "us", "When it was claimed last."),
    Column("finished_at", "us", "When it was gone, or became a dead letter."),
    Column("deliveries", "int", "How often it was claimed."),
    Column("failures", "int", "How many of its deliveries failed."),
    Column("queued_ms", "long", "How long it was ready or delayed, ms."),
    Column("worked_ms", "long", "How long workers had it, ms."),
    Column("retries", "int", "How often Celery had retried the task before this message."),
    Column("root_id", "text", "Task id of the first task of the workflow."),
    Column("parent_id", "text", "Task id of the task that sent this one."),
    Column("priority", "int", "As the publisher gave it."),
    Column("body_size", "long", "Bytes of the body."),
)


def is_finished(path: Sequence[Event]) -> bool:
    """Return whether a message's events end with its end: it is gone, or has become a dead letter.

    What becomes of a dead letter is no other end, unless it is replayed, or a late ack says that its work was done.
    """
    last = path[-1]
    if not is_gone(path):
        return TRANSITIONS[last.event].target == DEAD
    return last.event == "acked" or len(path) == 1 or TRANSITIONS[path[-2].event].target != DEAD


def is_gone(path: Sequence[Event]) -> bool:
    """Return whether a message is not on the server any more, by its events."""
    return TRANSITIONS[path[-1].event].target == GONE


def spent_ms(path: Sequence[Event]) -> tuple[int, int]:
    """Return how long a message was ready or delayed, and how long workers had it, in ms, by its events in order."""
    spent = dict.fromkeys((READY, DELAYED, CLAIMED, DEAD, GONE), 0)
    for event, following in pairwise(path):
        # A server's clock may go back.
        spent[TRANSITIONS[event.event].target] += max(0, following.ts - event.ts)
    return (spent[READY] + spent[DELAYED]) // 1000, spent[CLAIMED] // 1000


def failed_deliveries(path: Sequence[Event]) -> int:
    """Return how many of a message's deliveries failed, by its events."""
    return sum(_is_failure(event) for event in path)


def row(path: Sequence[Event]) -> dict[str, Any]:
    """Return the row of a finished message, by column; times are µs since the epoch.

    Args:
        path: its events, in order. What was not written (`event_log_events`) is not counted.
    """
    first, last = path[0], path[-1]
    claims = [event for event in path if event.event == "claimed"]
    queued_ms, worked_ms = spent_ms(path)
    return {
        "id": last.id,
        "task_id": first.task_id,
        "task": first.task,
        "state": shown_state(TRANSITIONS[last.event].target, event=last.event, reason=last.reason or "", tried=bool(claims)),
        "event": last.event,
        "reason": last.reason,
        "error": last.error,
        "worker": claims[-1].worker if claims else None,
        "published_at": last.published_at * 1000,
        "first_delivery_at": claims[0].ts if claims else None,
        "last_delivery_at": claims[-1].ts if claims else None,
        "finished_at": last.ts,
        "deliveries": len(claims),
        "failures": failed_deliveries(path),
        "queued_ms": queued_ms,
        "worked_ms": worked_ms,
        "retries": first.retries,
        "root_id": first.root_id,
        "parent_id": first.parent_id,
        "priority": first.priority,
        "body_size": first.body_size,
    }


def _is_failure(event: Event) -> bool:
    return event.event in ("recovered", "requeued", "retried", "dead_lettered") and event.reason in FAILED_DELIVERY
