"""Finds a message by its id, or by Celery's task id, in whatever queue it is, and acts on it there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from celery_redis_plus.broker.queues.messages import MESSAGE_ID

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.messages import MessageInfo, Messages


class MessageSearch:
    """Searches queues. All methods raise as `Messages` does, and take one queue, or look into all of them."""

    def __init__(self, messages: Messages, queues: Callable[[], Iterable[str]]) -> None:
        """Search `queues`, which is asked when it is needed."""
        self._messages = messages
        self._queues = queues

    def find(self, id: str, queue: str | None = None) -> MessageInfo | None:  # noqa: A002 - what users know it by
        """Return what is known of a message; None where it is not found. Of one that was moved, its present place."""
        names = self._names(queue)
        moved = None
        # Delayed messages are looked through only for a task that no index knows.
        for tags_of in [_itself] if MESSAGE_ID.fullmatch(id) else [self._messages.of_task, self._messages.delayed_of_task]:
            for name in names:
                for tag in tags_of(name, id)[-1:]:
                    found = self._messages.find(name, tag)
                    if found is not None and found.state != "MOVED":
                        return found
                    moved = moved or found
        return moved

    def cancel(self, id: str, queue: str | None = None, *, dead_letter: bool = False) -> bool:  # noqa: A002 - as above
        """Remove a message that no consumer has yet; return whether it was there."""
        return any(self._messages.cancel(name, self._tags(name, id), dead_letter=dead_letter) for name in self._names(queue))

    def reschedule(self, id: str, eta: int | str, queue: str | None = None) -> bool:  # noqa: A002 - as above
        """Give a message that no consumer has yet another time, see `Messages.reschedule`; return whether it was there."""
        return any(self._messages.reschedule(name, tag, eta) for name in self._names(queue) for tag in self._tags(name, id))

    def move(self, id: str, target: str, queue: str | None = None) -> str | None:  # noqa: A002 - as above
        """Move a message that no consumer has yet into the queue `target`; return its id there, None where it was not found."""
        for name in self._names(queue):
            for tag in self._tags(name, id):
                moved = self._messages.move(name, tag, target)
                if moved is not None:
                    return moved
        return None

    def _names(self, queue: str | None) -> Sequence[str]:
        return [queue] if queue is not None else list(self._queues())

    def _tags(self, queue: str, id: str) -> list[str]:  # noqa: A002 - as above
        if MESSAGE_ID.fullmatch(id):
            return [id]
        return self._messages.of_task(queue, id) or self._messages.delayed_of_task(queue, id)


def _itself(_: str, tag: str) -> list[str]:
    return [tag]
