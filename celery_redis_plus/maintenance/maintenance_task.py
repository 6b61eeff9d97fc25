"""What a maintenance task is: when it is due, and that it may keep the thread for one slice; the rest waits for its next turn.

Heartbeats and the looks for consumers come before every slice (`runner.py`), so that none is later than one slice and one answer
of the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from celery_redis_plus import clock

#: Seconds after which a maintenance task that has more to do gives the thread back.
SLICE_S = 0.1


class MaintenanceTask(ABC):
    """One kind of background work."""

    #: When to run next, on `clock`, in seconds; a task that is new is due.
    _due_at = 0.0

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity where there is nothing to do."""
        return self._due_at

    def run_soon(self) -> None:
        """Run next at once: the connection was away, or something has changed. From any thread."""
        self._due_at = 0.0

    @abstractmethod
    def run(self) -> None:
        """Do what is due. Raises as `CommandConnection.call` does; it is due again then."""


class Slice:
    """The time of one turn of one task."""

    def __init__(self) -> None:
        """Begin now."""
        self._ends_at = clock.now_s() + SLICE_S

    @property
    def over(self) -> bool:
        """Whether the maintenance task has to give the thread back."""
        return clock.now_s() >= self._ends_at
