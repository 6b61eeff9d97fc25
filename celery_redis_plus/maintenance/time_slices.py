"""How long a maintenance task may keep the thread: for one slice. What is left waits until the others had their turn.

Heartbeats and the consumers' heartbeats come before every slice (`runner.py`), so that none is later than one slice and one
answer of the server.
"""

from __future__ import annotations

from celery_redis_plus import clock

#: Seconds after which a maintenance task that has more to do gives the thread back.
SLICE_S = 0.1


class Slice:
    """The time of one turn of one task."""

    def __init__(self) -> None:
        """Begin now."""
        self._ends_at = clock.now_s() + SLICE_S

    @property
    def over(self) -> bool:
        """Whether the maintenance task has to give the thread back."""
        return clock.now_s() >= self._ends_at
