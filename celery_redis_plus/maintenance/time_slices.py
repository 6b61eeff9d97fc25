"""How long a duty may keep the thread: for one slice. What is left waits until the others had their turn.

Heartbeats and the consumers' signs of life come before every slice (`rounds.py`), so that none is later than one slice and one
answer of the server.
"""

from __future__ import annotations

import time

#: Seconds after which a duty that has more to do gives the thread back.
SLICE_S = 0.1


class Slice:
    """The time of one turn of one duty."""

    def __init__(self) -> None:
        """Begin now."""
        self._ends_at = time.monotonic() + SLICE_S

    @property
    def over(self) -> bool:
        """Whether the duty has to give the thread back."""
        return time.monotonic() >= self._ends_at
