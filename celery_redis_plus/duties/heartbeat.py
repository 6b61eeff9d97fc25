"""Moves on the deadlines of what this process holds, every third of the visibility timeout, whatever its consumer is doing."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.broker.holding import Held, Register
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.topology.held_connection import Argument
    from celery_redis_plus.topology.wire import Wire

logger = logging.getLogger(__name__)

#: Messages in one script call.
BATCH = 250


class Heartbeat:
    """The duty that keeps claims alive."""

    def __init__(self, wire: Wire, keys: Keys, register: Register, *, visibility_timeout_s: float) -> None:
        """Send for what stands in `register`."""
        self._wire = wire
        self._keys = keys
        self._register = register
        self._timeout_ms = int(visibility_timeout_s * 1000)
        self._interval_s = visibility_timeout_s / 3
        self._due_at = 0.0

    @property
    def due_at(self) -> float:
        """When to run next, on the monotonic clock, in seconds."""
        return self._due_at

    def hurry(self) -> None:
        """Run next at once: the connection is new, so nobody knows how long it was gone."""
        self._due_at = 0.0

    def run(self) -> None:
        """Send one heartbeat for everything held. Raises as `Wire.run` does."""
        self._due_at = time.monotonic() + self._interval_s
        batch: dict[str, list[Held]] = {}
        size = 0
        for queue, messages in self._register.by_queue().items():
            for held in messages:
                batch.setdefault(queue, []).append(held)
                size += 1
                if size == BATCH:
                    self._send(batch)
                    batch, size = {}, 0
        if batch:
            self._send(batch)

    def _send(self, batch: dict[str, list[Held]]) -> None:
        keys: list[bytes] = []
        arguments: list[Argument] = [self._timeout_ms]
        claims: dict[str, int] = {}
        for queue, messages in batch.items():
            of = self._keys.queue(queue)
            keys += (of.index, of.message)
            arguments.append(len(messages))
            for held in messages:
                claims[held.tag] = held.claim
                arguments += (held.tag, held.claim)
        for tag in self._wire.run(script("heartbeat"), keys, *arguments):
            name = tag.decode()
            lost = self._register.lose(name, claims[name])
            if lost is not None:
                logger.warning(
                    "message %s of queue %r was given to another consumer: this process gave no sign of life for longer than "
                    "the visibility timeout, or the queue was purged; it may run twice",
                    name, lost.queue,
                )  # fmt: skip
