"""What the tables hold, computed in plain Python, one event after the other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from celery_redis_plus.events import FAILED_DELIVERY, TRANSITIONS, Event, shown_state


class Counts:
    """One row of a table per minute."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = defaultdict(int)
        self.times: dict[str, list[float]] = {"wait": [], "run": []}

    def add(self, event: Event, wait: float | None, run: float | None) -> None:
        kind, reason = event.event, event.reason or ""
        self.counted["published"] += kind == "published"
        self.counted["delivered"] += kind == "claimed"
        self.counted["acked"] += kind == "acked" and reason in {"", "ignored", "early"}
        has_failed = (kind == "acked" and reason in {"failure", "revoked"}) or (kind == "failed" and reason != "retry")
        self.counted["failed"] += has_failed or kind == "rejected"
        self.counted["retried"] += kind == "retried" or (kind in {"acked", "failed"} and reason == "retry")
        self.counted["requeued"] += kind in {"recovered", "requeued"}
        self.counted["expired"] += kind == "expired" or reason == "expired"
        self.counted["dead"] += kind == "dead_lettered"
        gives_up = kind in {"recovered", "requeued", "retried", "dead_lettered"} and reason in FAILED_DELIVERY
        task_failed = (kind, reason) == ("acked", "failure") or (kind == "failed" and reason != "retry")
        self.counted["failed_deliveries"] += gives_up or task_failed or kind == "rejected"
        for name, value in (("wait", wait), ("run", run)):
            if value is not None:
                self.times[name].append(value)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = dict(self.counted)
        for name, values in self.times.items():
            for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                row[f"{name}_{label}_s"] = percentile(values, share)
        return row


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of all are not above."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def aggregate_in_python(events_by_queue: Mapping[str, Sequence[Event]]) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Return table -> key -> row."""
    messages: dict[tuple[Any, ...], dict[str, Any]] = {}
    minutes: dict[str, dict[tuple[Any, ...], Counts]] = {table: defaultdict(Counts) for table in ("queues", "tasks", "workers")}
    ready_changes: dict[tuple[str, datetime], int] = defaultdict(int)
    for queue, events in events_by_queue.items():
        last: dict[str, Event] = {}
        claimers: dict[str, str | None] = {}
        for event in events:
            key = (queue, event.id)
            previous = last.get(event.id)
            empty = {"attempts": 0, "wait_s": None, "run_s": None, "events": 0, "task": None, "first_delivery": None}
            message = messages.setdefault(key, empty)
            state_before = TRANSITIONS[previous.event].target if previous else "new"
            state = TRANSITIONS[event.event].target
            elapsed = (event.ts - previous.ts) / 1e6 if previous else None
            wait = elapsed if event.event == "claimed" else None
            run = elapsed if previous and previous.event == "claimed" else None
            # A task may fail behind its early ack.
            ends = previous is not None and (previous.event == "claimed" or (previous.event, event.event) == ("acked", "failed"))
            claimed_by = claimers.get(event.id) if ends else event.worker
            message["events"] += 1
            message["task"] = message["task"] or event.task
            if event.event == "claimed":
                message["attempts"] += 1
                message["first_delivery"] = message["first_delivery"] or moment(event.ts)
                message["worker"] = claimers[event.id] = event.worker
            for name, value in (("wait_s", wait), ("run_s", run)):
                if value is not None:
                    message[name] = (message[name] or 0.0) + value
            died = previous is not None and (previous.event, event.event) == ("dead_lettered", "moved")
            message["reason"] = previous.reason if died else event.reason
            message["state"] = shown_state(state, event=event.event, reason=event.reason or "", tried=message["attempts"] > 0)
            message["finished_at"] = moment(event.ts) if state in {"gone", "dead"} else None
            last[event.id] = event
            minute = moment(event.ts // 60_000_000 * 60_000_000)
            minutes["queues"][queue, minute].add(event, wait, run)
            if message["task"]:
                minutes["tasks"][message["task"], minute].add(event, wait, run)
            if claimed_by:
                minutes["workers"][claimed_by, minute].add(event, wait, run)
            ready_changes[queue, minute] += (state == "ready") - (state_before == "ready")
    found: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {
        table: {key: counts.row() for key, counts in rows.items()} for table, rows in minutes.items()
    }
    backlog: dict[str, int] = defaultdict(int)
    for queue, minute in sorted(ready_changes):
        backlog[queue] += ready_changes[queue, minute]
        found["queues"][queue, minute]["backlog"] = backlog[queue]
    return {"messages": messages} | found


def moment(microseconds: int) -> datetime:
    """Return the time of `microseconds` since the epoch."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
