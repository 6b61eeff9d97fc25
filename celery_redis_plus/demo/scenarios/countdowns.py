"""Twenty tasks with countdowns of 0.5 to 5 seconds: how late does each start?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import COUNTDOWNS
from celery_redis_plus.demo.expectations import Expectation, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment
    from celery_redis_plus.demo.task_log import Record

TITLE = "Countdowns"
TASKS = 20
FIRST_S, LAST_S = 0.5, 5.0
#: Generous: another program may hold the machine's cores for that long.
LATENESS_LIMIT_MS = 500


def run_scenario(environment: Environment, console: Console) -> Outcome:
    """Publish the tasks in a mixed order, and compare each start with its time."""
    console.scenario(
        TITLE,
        f"{TASKS} tasks are to start {FIRST_S} to {LAST_S} seconds after they are published. Until then Redis holds them, not "
        "the worker. Each start is compared with the time that was asked for.",
    )
    countdowns = {number: FIRST_S + (LAST_S - FIRST_S) * number / (TASKS - 1) for number in range(TASKS)}
    # Neither in order nor in reverse.
    for number in sorted(countdowns, key=lambda number: (number * 7 % 5, number)):
        environment.app.send_task(COUNTDOWNS, (number,), queue=COUNTDOWNS, countdown=countdowns[number])
    sizes = environment.sizes(COUNTDOWNS)
    console.say(f"in Redis now: {sizes.delayed} delayed, {sizes.ready} ready, {sizes.unacked} at a worker")
    environment.wait_for_records(COUNTDOWNS, TASKS, LAST_S + 10, "started")

    records = environment.task_log.read(COUNTDOWNS)
    lateness = lateness_ms(records, environment.clock_offset_s)
    console.table(
        ("after s", "late ms"),
        [(f"{after:.2f}", f"{lateness[one]:.1f}" if one in lateness else "never") for one, after in countdowns.items()],
    )
    figures = {}
    if lateness:
        late = lateness.values()
        figures["lateness of countdowns"] = f"median {median(late):.1f} ms, longest {max(late):.1f} ms"
    return Outcome(TITLE, verify(records, lateness), figures)


def verify(records: Sequence[Record], lateness: Mapping[int, float]) -> list[Expectation]:
    """Return the expectations about the records of the starts."""
    runs = Counter(record["number"] for record in records)
    return [
        Expectation.equal("tasks executed exactly once", sum(runs[number] == 1 for number in range(TASKS)), TASKS),
        Expectation.none("tasks that started early", [number for number, late in lateness.items() if late < 0]),
        Expectation.at_most("longest lateness", max(lateness.values(), default=float("inf")), LATENESS_LIMIT_MS, "ms"),
    ]


def lateness_ms(records: Sequence[Record], clock_offset_s: float = 0.0) -> dict[int, float]:
    """Return how late each task started, in ms, by the server's clock: the one that decides when a task is due."""
    return {record["number"]: (record["at"] + clock_offset_s - record["due"]) * 1000 for record in records}
