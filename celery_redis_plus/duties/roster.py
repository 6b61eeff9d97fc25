"""Gives signs of life of this process's consumers, and takes those off their queues' lists that are gone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers import Consumer, Consumers
    from celery_redis_plus.duties.watched import WatchList

#: Consumers in one script call.
BATCH = 50


class Roster:
    """The duty that keeps the lists of consumers true."""

    def __init__(self, consumers: Consumers, watched: WatchList, *, timeout_s: float) -> None:
        """Look after the consumers in `watched`; one counts as dead after `timeout_s` seconds of silence."""
        self._consumers = consumers
        self._watched = watched
        self._interval_s = timeout_s / 3
        self._due_at = 0.0
        #: Who was on the lists when we last looked: id -> queue.
        self._listed: dict[str, str] = {}

    @property
    def due_at(self) -> float:
        """When to run next, on the monotonic clock, in seconds."""
        return self._due_at

    def hurry(self) -> None:
        """Run next at once: the connection was away, or what is watched has changed."""
        self._due_at = 0.0

    def run(self) -> None:
        """Give the signs of life. Raises as `Wire.run` does."""
        present = {consumer.id: consumer for queue in self._watched.all() for consumer in queue.consumers}
        # A cancelled consumer has left by itself; that of a broken connection has not.
        for name, queue in list(self._listed.items()):
            if name not in present:
                self._consumers.leave(queue, name)
                del self._listed[name]
        self._listed.update((name, consumer.queue) for name, consumer in present.items())
        self._beat(list(present.values()))
        self._due_at = time.monotonic() + self._interval_s

    def _beat(self, consumers: list[Consumer]) -> None:
        for at in range(0, len(consumers), BATCH):
            for unknown in self._consumers.beat(consumers[at : at + BATCH]):
                self._consumers.join(unknown)
