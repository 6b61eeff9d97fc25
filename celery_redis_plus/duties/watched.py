"""The queues that a process consumes, as its duties need to know them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class WatchedQueue:
    """A queue with at least one consumer in this process."""

    name: str
    #: Life of the unused queue in ms; None: it is a lasting one.
    ttl_ms: int | None
    consumers: frozenset[str]


class WatchList:
    """What is consumed here; changed by channels, read by the duties."""

    def __init__(self) -> None:
        """Start empty."""
        self._queues: dict[str, WatchedQueue] = {}
        self._lock = threading.Lock()
        #: Counts changes, so that a duty sees that it has to look again.
        self.version = 0
        #: Called, from any thread, after a change.
        self.on_change: Callable[[], None] = lambda: None

    def add(self, queue: str, consumer: str, ttl_ms: int | None) -> None:
        """Note that `consumer` consumes `queue`."""
        with self._lock:
            known = self._queues.get(queue)
            consumers = frozenset({consumer}) | (known.consumers if known else frozenset())
            self._queues[queue] = WatchedQueue(queue, ttl_ms, consumers)
            self.version += 1
        self.on_change()

    def remove(self, queue: str, consumer: str) -> bool:
        """Note that `consumer` is gone; return whether it was the last one here."""
        with self._lock:
            known = self._queues.get(queue)
            if known is None or consumer not in known.consumers:
                return False
            left = known.consumers - {consumer}
            self.version += 1
            if left:
                self._queues[queue] = replace(known, consumers=left)
                return False
            del self._queues[queue]
        return True

    def all(self) -> list[WatchedQueue]:
        """Return the watched queues."""
        return list(self._queues.values())

    def __len__(self) -> int:
        """Return how many queues are watched."""
        return len(self._queues)
