"""Warns of limits that count unacked messages, where a worker acks tasks before it runs them, as Celery does by default."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redis_plus.integration.ack_policies import AckPolicies

logger = logging.getLogger(__name__)

#: Queue arguments that limit how many messages are in work at once.
LIMITS: Final = ("x-group-concurrency", "x-max-unacked")
#: Tasks that a warning names at most.
NAMED: Final = 5


def warn_about_early_acks(app: Any, policies: AckPolicies) -> None:
    """Warn of each queue of a worker with such a limit, and name the tasks that would pass it by."""
    for queue in app.amqp.queues.consume_from.values():
        arguments = queue.queue_arguments or {}
        limit = next((name for name in LIMITS if name in arguments), None)
        early = [] if limit is None else sorted(_acked_early(app, policies, queue.name))
        if early:
            more = "" if len(early) <= NAMED else f" and {len(early) - NAMED} more"
            logger.warning(
                "queue %r has %s=%s, and these tasks are acked before they run, so that they are not counted: %s%s. Set "
                "task_acks_late=True, acks_late of the tasks, or an ack policy",
                queue.name, limit, arguments[limit], ", ".join(early[:NAMED]), more, extra={"queue": queue.name},
            )  # fmt: skip


def _acked_early(app: Any, policies: AckPolicies, queue: str) -> Iterator[str]:
    for name, task in app.tasks.items():
        if not name.startswith("celery."):
            policy = policies.of(task, queue)
            if policy == "ack_first" or (policy is None and not task.acks_late):
                yield name
