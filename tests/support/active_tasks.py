"""Stands for the worker that a process knows of, with `set_keeper`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass
class KnownWorker:
    """The `ActiveTasks` (broker/consumers) of a worker that goes on.

    Attributes:
        ends: whether it was told to end, and waits for its pool.
        active: whether it works on a message: on all, on none, on those with these bodies; None: it has not decided.
    """

    ends: bool = False
    active: bool | Collection[Any] | None = None

    def is_stopping(self) -> bool:
        return False

    def stop_requested(self) -> bool:
        return self.ends

    def waiting_in_pool(self) -> int:
        return 0

    def is_active(self, message: Any, orphaned_at: float) -> bool | None:
        return message.payload in self.active if isinstance(self.active, Collection) else self.active
