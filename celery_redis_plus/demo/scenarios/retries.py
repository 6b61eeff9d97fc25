"""Tasks that fail twice and ask for a retry with exponential back-off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import BACKOFF_S, FAILED_RUNS, RETRIES
from celery_redis_plus.demo.expectations import Expectation, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment
    from celery_redis_plus.demo.task_log import Record

TITLE = "Retries"
TASKS = 10
ATTEMPTS = FAILED_RUNS + 1
TIMEOUT_S = 20


def run_scenario(environment: Environment, console: Console) -> Outcome:
    """Publish the tasks and follow their attempts."""
    waits = " and ".join(f"{BACKOFF_S * 2**attempt:.1f}" for attempt in range(FAILED_RUNS))
    console.scenario(
        TITLE,
        f"{TASKS} tasks fail {FAILED_RUNS} times and succeed then; self.retry() lets them wait {waits} seconds in between.",
    )
    for number in range(TASKS):
        environment.app.send_task(RETRIES, (number,), queue=RETRIES)
    environment.wait_for_records(RETRIES, TASKS * ATTEMPTS, TIMEOUT_S, "attempts")

    records = environment.task_log.read(RETRIES)
    console.table(("attempt", "executed", "shortest wait before s", "longest"), rows(records))
    return Outcome(TITLE, verify(records))


def verify(records: Sequence[Record]) -> list[Expectation]:
    """Return the expectations about the records of the attempts."""
    attempts = {number: [r["attempt"] for r in records if r["number"] == number] for number in range(TASKS)}
    complete = [number for number, seen in attempts.items() if seen == list(range(ATTEMPTS))]
    hasty = [
        wait for attempt in range(1, ATTEMPTS) for wait in waits_s(records, attempt) if wait < BACKOFF_S * 2 ** (attempt - 1)
    ]
    return [
        Expectation.equal(f"tasks that succeeded at attempt {ATTEMPTS}, each attempt made once", len(complete), TASKS),
        Expectation.none("retries before their back-off was over", hasty),
    ]


def waits_s(records: Sequence[Record], attempt: int) -> list[float]:
    """Return how long each task waited for its `attempt`, counted from 0."""
    began = {(record["number"], record["attempt"]): record["at"] for record in records}
    return [
        began[number, attempt] - began[number, attempt - 1]
        for number in range(TASKS)
        if {(number, attempt), (number, attempt - 1)} <= began.keys()
    ]


def rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return the lines of the table, one for each attempt."""
    lines: list[tuple[str, ...]] = []
    for attempt in range(ATTEMPTS):
        waits = waits_s(records, attempt)
        executed = sum(record["attempt"] == attempt for record in records)
        shortest, longest = (f"{min(waits):.3f}", f"{max(waits):.3f}") if waits else ("", "")
        lines.append((str(attempt + 1), str(executed), shortest, longest))
    return lines
