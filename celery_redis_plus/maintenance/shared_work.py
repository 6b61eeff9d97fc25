"""How often each of many processes does what one of them can do for all."""

from __future__ import annotations

#: So many processes do it often enough; of more, each does it more rarely, up to so many times.
ENOUGH_PROCESSES, MOST_RARELY = 10, 3.0


class SharedWork:
    """The number of consuming processes on a broker and of the consumers of a queue, and what follows from them.

    The processes do such work at random times. With more than `ENOUGH_PROCESSES` of them the interval of each grows, and together
    they still do it more often than that number would.
    """

    def __init__(self) -> None:
        """Know no number yet."""
        #: Processes that consume, this one among them, as its last report told; 0: unknown.
        self.processes = 0
        #: Queue that this process consumes -> its consumers in all processes, as their last heartbeats told.
        self.consumers: dict[str, int] = {}
        #: Transient queue to which nothing was ever published -> when this process saw that, on `clock`, in seconds, and the
        #: id of its record.
        self.unpublished: dict[str, tuple[float, bytes]] = {}

    def consumers_of(self, queue: str) -> int:
        """Return how many look after a queue, 0 where that is unknown: its consumers; without one here, all processes."""
        return self.consumers.get(queue, self.processes)

    def interval_s(self, base_s: float) -> float:
        """Return for how many seconds this process rests that would rest for `base_s` alone."""
        return base_s * min(MOST_RARELY, max(1.0, self.processes / ENOUGH_PROCESSES))
