"""The end: warm shutdown, and a look at what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import BROADCASTS, COUNTDOWNS, PRIORITIES, QUEUES, RETRIES
from celery_redis_plus.demo.chapters import broadcasts, countdowns, priorities, retries
from celery_redis_plus.demo.claims import Claim, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.account import Account
    from celery_redis_plus.demo.stage import Stage

TITLE = "Departure"
#: What must not have run again since its chapter was judged. (Tasks of the crash may.)
EXPECTED = {
    PRIORITIES: priorities.TASKS,
    COUNTDOWNS: countdowns.TASKS,
    RETRIES: retries.TASKS * retries.ATTEMPTS,
    BROADCASTS: broadcasts.TASKS * len(broadcasts.WORKERS),
}


def play(stage: Stage, account: Account) -> Outcome:
    """Shut the worker down and look into Redis."""
    account.chapter(
        TITLE, "The worker that is left shuts down warmly. No message may be left, and no task may have run again since."
    )
    statuses = stage.stop_workers()
    sizes = {queue: stage.sizes(queue) for queue in QUEUES}
    left = {queue: size.ready + size.delayed + size.unacked for queue, size in sizes.items()}
    return Outcome(TITLE, judge(statuses, left, {kind: stage.journal.count(kind) for kind in EXPECTED}))


def judge(statuses: Mapping[str, int | None], left: Mapping[str, int], counts: Mapping[str, int]) -> list[Claim]:
    """Return the claims about the workers' exit statuses, the messages left by queue, and all executions by kind."""
    return [
        Claim.none("workers whose warm shutdown failed", [name for name, status in statuses.items() if status != 0]),
        Claim.none("queues with messages left", [queue for queue, messages in left.items() if messages]),
        Claim.equal("executions in all, apart from the crash", sum(counts.values()), sum(EXPECTED.values())),
    ]
