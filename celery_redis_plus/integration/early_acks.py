"""Warns of what goes by unacked messages, where a worker acks tasks before it runs them, as Celery does by default."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from celery_redis_plus.integration.task_limiters import LIMITER_OF_TASK
from celery_redis_plus.integration.unique_tasks import UNTIL_SUCCESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_redis_plus.integration.ack_policies import AckPolicies

logger = logging.getLogger(__name__)

#: Queue arguments that limit how many messages are in work at once.
LIMITS: Final = ("x-group-concurrency", "x-max-unacked")
#: Tasks that a warning names at most.
NAMED: Final = 5


def warn_about_early_acks(app: Any, policies: AckPolicies) -> None:
    """Warn of the limits that tasks of a worker would pass by: a line for each queue, one for limiters, one for unique tasks."""
    by_limiter, unique = set[str](), set[str]()
    for queue in app.amqp.queues.consume_from.values():
        early, arguments = list(_acked_early(app, policies, queue.name)), queue.queue_arguments or {}
        limit = next((name for name in LIMITS if name in arguments), None)
        if early and limit is not None:
            _warn(f"queue {queue.name!r} has {limit}={arguments[limit]}", (task.name for task in early))
        by_limiter.update(task.name for task in early if _has_concurrency(task))
        unique.update(task.name for task in early if getattr(task, "unique", None) == UNTIL_SUCCESS)
    if by_limiter:
        _warn("tasks have a limiter with a concurrency", by_limiter)
    if unique:
        _warn(f"tasks have unique={UNTIL_SUCCESS!r}", unique)


def _acked_early(app: Any, policies: AckPolicies, queue: str) -> Iterator[Any]:
    for name, task in app.tasks.items():
        if not name.startswith("celery."):
            policy = policies.of(task, queue)
            if policy == "ack_first" or (policy is None and not task.acks_late):
                yield task


def _has_concurrency(task: Any) -> bool:
    limiter = getattr(task, LIMITER_OF_TASK, None)
    return limiter is not None and limiter.rule.shape == "concurrency"


def _warn(limit: str, names: Iterable[str]) -> None:
    found = sorted(names)
    more = "" if len(found) <= NAMED else f" and {len(found) - NAMED} more"
    logger.warning(
        "%s, and these are acked before they run, so that they do not count while they run: %s%s. Set task_acks_late=True, "
        "acks_late of the tasks, or an ack policy", limit, ", ".join(found[:NAMED]), more,
    )  # fmt: skip
