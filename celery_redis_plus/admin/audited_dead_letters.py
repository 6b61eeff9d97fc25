"""Dead letters for an operator: what is deleted is an action of the audit log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.queues.audit import Audit

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


class AuditedDeadLetters(DeadLetters):
    """The dead letters over one connection."""

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        super().__init__(commands, keys)
        self._audit = Audit(commands, keys)

    def delete(self, queue: str, tags: Sequence[str]) -> int:
        """Delete dead letters for good; return how many there were."""
        with self._audit.action("delete dead letters", queue) as action:
            action.count = super().delete(queue, tags)
        return action.count

    def purge(self, queue: str, progress: Callable[[int], object] = lambda _: None) -> int:
        """Delete all dead letters of the queue for good; return how many there were. `progress` is told of each batch."""
        with self._audit.action("purge dead letters", queue, in_steps=True) as action:
            action.count = super().purge(queue, progress)
        return action.count
