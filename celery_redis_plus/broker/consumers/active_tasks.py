"""What is asked about the messages of a session that is gone: whether the application still works on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from celery_redis_plus.broker.consumers.unacked import UnackedMessage

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import Unacked


class ActiveTasks(Protocol):
    """Knows which messages of a broken session the application still works on. `integration/` provides it for Celery."""

    def is_stopping(self) -> bool:
        """Return whether the consumer is shutting down, so that nothing unsettled will be settled any more."""

    def stop_requested(self) -> bool:
        """Return whether the consumer was told to end, so that it should be given nothing more."""

    def waiting_in_pool(self) -> int:
        """Return how many tasks wait for a thread of the application's pool. From any thread."""

    def is_active(self, message: Any, orphaned_at: float) -> bool | None:
        """Return whether `message` will still be settled; None while the application has not decided.

        Args:
            message: what was delivered.
            orphaned_at: when its session went, on `clock`, in seconds.
        """


def inactive(delivered: Iterable[Unacked], active_tasks: ActiveTasks) -> list[Unacked]:
    """Return those of the unsettled deliveries that the application does not work on, of a consumer that ends.

    What has begun and is inactive has ended just now, and will be settled: Celery forgets a task before it acks its message. If
    it is not settled, it goes back when the process ends.
    """
    return [unacked for unacked in delivered if not _is_in_work(unacked, active_tasks)]


def _is_in_work(unacked: Unacked, active_tasks: ActiveTasks) -> bool:
    message, begun = unacked.alive, isinstance(unacked, UnackedMessage) and unacked.started
    return message is not None and (begun or bool(active_tasks.is_active(message, 0.0)))
