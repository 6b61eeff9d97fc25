"""The end: warm shutdown, and a look at what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import BROADCASTS, COUNTDOWNS, PRIORITIES, QUEUES, RETRIES
from celery_redis_plus.demo.expectations import Expectation, Outcome
from celery_redis_plus.demo.scenarios import broadcasts, countdowns, priorities, retries

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment

TITLE = "Shutdown"
#: Executions that must not have increased since its scenario was verified. (Tasks of the crash may.)
EXPECTED = {
    PRIORITIES: priorities.TASKS,
    COUNTDOWNS: countdowns.TASKS,
    RETRIES: retries.TASKS * retries.ATTEMPTS,
    BROADCASTS: broadcasts.TASKS * len(broadcasts.WORKERS),
}


def run_scenario(environment: Environment, console: Console) -> Outcome:
    """Shut the worker down and look into Redis."""
    console.scenario(
        TITLE, "The worker that is left shuts down warmly. No message may be left, and no task may have run again since."
    )
    statuses = environment.stop_workers()
    sizes = {queue: environment.sizes(queue) for queue in QUEUES}
    left = {queue: size.ready + size.delayed + size.unacked for queue, size in sizes.items()}
    return Outcome(TITLE, verify(statuses, left, {kind: environment.task_log.count(kind) for kind in EXPECTED}))


def verify(statuses: Mapping[str, int | None], left: Mapping[str, int], counts: Mapping[str, int]) -> list[Expectation]:
    """Return the expectations about the workers' exit statuses, the messages left by queue, and all executions by kind."""
    return [
        Expectation.none("workers whose warm shutdown failed", [name for name, status in statuses.items() if status != 0]),
        Expectation.none("queues with messages left", [queue for queue, messages in left.items() if messages]),
        Expectation.equal("executions in all, apart from the crash", sum(counts.values()), sum(EXPECTED.values())),
    ]
