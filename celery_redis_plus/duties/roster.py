"""Gives signs of life of this process's consumers, and takes those off their queues' lists that are gone."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers import Consumer, Consumers
    from celery_redis_plus.duties.watched import WatchList

#: Consumers in one script call.
BATCH = 50
#: Seconds until a consumer that is not on its list is looked at once more.
LOOK_AGAIN_S = 0.2


class Roster:
    """The duty that keeps the lists of consumers true."""

    def __init__(self, consumers: Consumers, watched: WatchList, *, timeout_s: float) -> None:
        """Look after the consumers in `watched`; one counts as dead after `timeout_s` seconds of silence."""
        self._consumers = consumers
        self._watched = watched
        self._interval_s = timeout_s / 3
        self._due_at = 0.0
        #: Consumers that were not on their lists when we last looked.
        self._missed: set[str] = set()
        #: (queue, consumer) of connections that broke: nobody else takes them off the lists.
        self._left_behind: deque[tuple[str, str]] = deque()

    @property
    def due_at(self) -> float:
        """When to run next, on the monotonic clock, in seconds."""
        return self._due_at

    def hurry(self) -> None:
        """Run next at once: the connection was away, or what is watched has changed."""
        self._due_at = 0.0

    def strike_off(self, queue: str, consumer: str) -> None:
        """Take a consumer off its queue's list soon: its own connection cannot. From any thread."""
        self._left_behind.append((queue, consumer))
        self._due_at = 0.0

    def run(self) -> None:
        """Give the signs of life. Raises as `Wire.run` does; nothing is forgotten then."""
        self._due_at = time.monotonic() + self._interval_s
        while self._left_behind:
            self._consumers.leave(*self._left_behind[0])
            self._left_behind.popleft()
        present = self._present()
        self._missed.intersection_update(consumer.id for consumer in present)
        self._beat(present)

    def _beat(self, consumers: list[Consumer]) -> None:
        for at in range(0, len(consumers), BATCH):
            for unknown in self._consumers.beat(consumers[at : at + BATCH]):
                if unknown.id not in self._missed:
                    # Taken for dead; or cancelled at this very moment, and then it must not be listed again.
                    self._missed.add(unknown.id)
                    self._due_at = time.monotonic() + LOOK_AGAIN_S
                    continue
                self._missed.discard(unknown.id)
                self._consumers.join(unknown)
                if unknown not in self._present():
                    self._consumers.leave(unknown.queue, unknown.id)

    def _present(self) -> list[Consumer]:
        return [consumer for queue in self._watched.all() for consumer in queue.consumers]
