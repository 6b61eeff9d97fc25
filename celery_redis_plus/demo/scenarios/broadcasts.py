"""Broadcasts: each of two workers must hear each one, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import BROADCASTS, CRASHES
from celery_redis_plus.demo.expectations import Expectation, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment
    from celery_redis_plus.demo.task_log import Record

TITLE = "Broadcasts"
TASKS = 20
#: The first runs since the first scenario.
WORKERS = ("one", "two")
TIMEOUT_S = 10
PING_S = 1.0


def run_scenario(environment: Environment, console: Console) -> Outcome:
    """Start a second worker, send tasks to all workers, and ping them."""
    console.scenario(
        TITLE, f"A second worker starts. {TASKS} tasks go to all workers (kombu.common.Broadcast), and one `app.control.ping()`."
    )
    environment.start_worker(WORKERS[1], [BROADCASTS, CRASHES])
    for number in range(TASKS):
        environment.app.send_task(BROADCASTS, (number,), queue=BROADCASTS)
    environment.wait_for_records(BROADCASTS, TASKS * len(WORKERS), TIMEOUT_S, "heard")
    replies = environment.app.control.ping(timeout=PING_S)
    answered = [name.partition("@")[0] for reply in replies for name in reply]

    records = environment.task_log.read(BROADCASTS)
    console.table(
        ("worker", "broadcasts heard", "pings answered"),
        [(name, str(len(heard(records, name))), str(answered.count(name))) for name in WORKERS],
    )
    return Outcome(TITLE, verify(records, answered))


def verify(records: Sequence[Record], answered: Sequence[str]) -> list[Expectation]:
    """Return the expectations about the records of what was heard, and the names of those who answered the ping."""
    numbers = list(range(TASKS))
    return [
        *(
            Expectation.equal(
                f"broadcasts that worker {name} heard exactly once",
                sum(heard(records, name).count(number) == 1 for number in numbers),
                TASKS,
            )
            for name in WORKERS
        ),
        Expectation.none(
            "workers that heard them in another order", [name for name in WORKERS if heard(records, name) != numbers]
        ),
        Expectation.equal("answers to the ping", len(answered), len(WORKERS)),
        Expectation.none("workers that did not answer the ping once", [name for name in WORKERS if answered.count(name) != 1]),
    ]


def heard(records: Sequence[Record], worker: str) -> list[int]:
    """Return the numbers that a worker heard, in order."""
    return [record["number"] for record in records if record["worker"] == worker]
