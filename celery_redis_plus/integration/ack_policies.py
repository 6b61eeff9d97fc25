"""Ack policies: what becomes of a message, by how the work on its task ended. One table for all of them.

Celery's own settings (`acks_late`, `acks_on_failure_or_timeout`, `reject_on_worker_lost`) hold where no policy is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_redis_plus.errors import OptionError

#: How the work on a task can end, as the worker's main process sees it.
ENDINGS = {
    "success": "The task returned.",
    "retry": "It raised Retry: a new message stands for it.",
    "ignored": "It raised Ignore.",
    "rejected": "It raised Reject.",
    "requeue": "It raised Reject(requeue=True).",
    "failure": "It raised anything else, SoftTimeLimitExceeded included.",
    "time_limit": "The hard time limit ended it.",
    "worker_lost": "The pool process that ran it died.",
    "revoked": "It was revoked, or terminated by a revoke, or had expired.",
}
#: What can be done with its message.
ACK, REJECT, REQUEUE = "ack", "reject", "requeue"

_SAID = {"retry": ACK, "ignored": ACK, "rejected": REJECT, "requeue": REQUEUE, "revoked": ACK}

#: Policy -> ending -> what is done. With `ack_first` the message is acked before the work begins, and nothing is done after.
POLICIES: Mapping[str, Mapping[str, str]] = {
    "ack_first": {},
    "ack_after": {**_SAID, "success": ACK, "failure": ACK, "time_limit": ACK, "worker_lost": REQUEUE},
    "reject_on_error": {**_SAID, "success": ACK, "failure": REJECT, "time_limit": REJECT, "worker_lost": REQUEUE},
    "nack_on_error": {**_SAID, "success": ACK, "failure": REQUEUE, "time_limit": REQUEUE, "worker_lost": REQUEUE},
    "manual": {**_SAID, "success": REQUEUE, "failure": REQUEUE, "time_limit": REQUEUE, "worker_lost": REQUEUE},
}


def check_policy(policy: object, owner: str) -> str:
    """Return `policy` if there is such a one.

    Raises:
        OptionError: there is none; `owner` says who asked for it.
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        raise OptionError(f"ack policy {policy!r} of {owner}; allowed: {', '.join(POLICIES)}")
    return policy


@dataclass(frozen=True, slots=True)
class AckPolicies:
    """The policies of one app."""

    #: For tasks and queues without their own; None: Celery's settings.
    default: str | None = None
    #: By queue.
    queues: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise OptionError for a policy that does not exist."""
        if self.default is not None:
            check_policy(self.default, "the app")
        for queue, policy in self.queues.items():
            check_policy(policy, f"queue {queue!r}")

    def governs(self, task: Any) -> bool:
        """Return whether a message of `task` may fall under a policy."""
        return bool(self.default or self.queues or getattr(task, "ack_policy", None))

    def of(self, task: Any, queue: str | None) -> str | None:
        """Return the policy of a task's message that came by `queue`: the task's, the queue's, the app's; None: Celery's."""
        own = getattr(task, "ack_policy", None)
        if own is not None:
            return check_policy(own, f"task {task.name!r}")
        return self.queues.get(queue or "", self.default)
