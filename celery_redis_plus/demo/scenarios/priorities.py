"""2,000 tasks over five priorities, all published before the worker starts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import BROADCASTS, COUNTDOWNS, CRASHES, PRIORITIES, RETRIES
from celery_redis_plus.demo.expectations import Expectation, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment
    from celery_redis_plus.demo.task_log import Record

TITLE = "Priorities"
TASKS = 2000
LEVELS = (0, 3, 6, 9, 255)
WORKER = "one"
TIMEOUT_S = 60


def run_scenario(environment: Environment, console: Console) -> Outcome:
    """Publish, start the first worker, and see in which order it started the tasks."""
    console.scenario(
        TITLE,
        f"{TASKS:,} tasks over {len(LEVELS)} priorities, mixed; the worker starts when all are published. It runs one task at a "
        "time and writes down each start. Higher priorities must go first; within one, the order of publishing counts.",
    )
    published = [(number, LEVELS[number % len(LEVELS)]) for number in range(TASKS)]
    began = time.monotonic()
    with console.progress("published", TASKS) as progress:
        for number, priority in published:
            environment.app.send_task(PRIORITIES, (number, priority), queue=PRIORITIES, priority=priority)
            if number % 50 == 49:
                progress(number + 1)
    publishing_s = time.monotonic() - began

    environment.start_worker(WORKER, [PRIORITIES, COUNTDOWNS, RETRIES, BROADCASTS, CRASHES])
    environment.wait_for_records(PRIORITIES, TASKS, TIMEOUT_S, "executed")

    records = environment.task_log.read(PRIORITIES)
    console.table(("priority", "published", "executed", "started as number"), rows(published, records))
    return Outcome(
        TITLE,
        verify(published, records),
        {
            "published": f"{TASKS / publishing_s:,.0f} tasks/s by one process",
            "executed": f"{rate(records):,.0f} tasks/s by one worker with one process",
        },
    )


def verify(published: Sequence[tuple[int, int]], records: Sequence[Record]) -> list[Expectation]:
    """Return the expectations about tasks (number, priority) and the worker's records of their starts, in order."""
    runs = Counter(record["number"] for record in records)
    lowest = max(LEVELS)
    overtaken, late = [], []
    last: dict[int, int] = {}
    for record in records:
        number, priority = record["number"], record["priority"]
        if priority > lowest:
            overtaken.append(number)
        lowest = min(lowest, priority)
        if number < last.get(priority, -1):
            late.append(number)
        last[priority] = max(number, last.get(priority, -1))
    return [
        Expectation.equal("tasks executed exactly once", sum(runs[number] == 1 for number, _ in published), len(published)),
        Expectation.none("tasks that a lower priority overtook", overtaken),
        Expectation.none("tasks out of publishing order within their priority", late),
    ]


def rows(published: Sequence[tuple[int, int]], records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return the lines of the table, the highest priority first."""
    sent = Counter(priority for _, priority in published)
    places: dict[int, list[int]] = {level: [] for level in sent}
    for place, record in enumerate(records, start=1):
        places[record["priority"]].append(place)
    return [
        (
            str(level),
            f"{sent[level]:,}",
            f"{len(places[level]):,}",
            f"{places[level][0]:,} to {places[level][-1]:,}" if places[level] else "never",
        )
        for level in sorted(sent, reverse=True)
    ]


def rate(records: Sequence[Record]) -> float:
    """Return the starts per second between the first and the last."""
    if len(records) < 2 or records[-1]["at"] <= records[0]["at"]:
        return 0.0
    return float((len(records) - 1) / (records[-1]["at"] - records[0]["at"]))
