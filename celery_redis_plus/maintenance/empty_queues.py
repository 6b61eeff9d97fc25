"""Knows which queues were empty at their last sweep: until the next one, plain commands tell that they still are.

An empty queue has nothing to sweep but the wakeup of a message that is published meanwhile and whose waiting consumer dies. So
the queue's other consumers look. One alone has no other to wake, and looks more rarely. Many of them look and sweep in turn: each
more rarely, all of them as often as `ENOUGH_CONSUMERS`. A look also tells whether the queue was declared again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from celery_redis_plus import clock

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import SeenQueue
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

#: Most seconds between two sweeps of an empty queue, and their share of the visibility timeout: a message that comes is swept
#: long before its lease can end. Of many consumers each sweeps more rarely, but looks as often: it may be left alone meanwhile.
EMPTY_SWEEP_S, SHARE_OF_TIMEOUT = 20.0, 1 / 15
#: So many consumers look at each interval; of more, each does so more rarely.
ENOUGH_CONSUMERS = 40
#: Of so many consumers none looks more often than at the list of consumers, and that tells the same.
MANY_CONSUMERS = 200


class EmptyQueues:
    """The empty queues of a sweeper."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        consumed: ConsumedQueues,
        *,
        interval_s: float,
        visibility_timeout_s: float,
    ) -> None:
        """Ask over `commands`; `consumed` tells how many consumers look after a queue."""
        self._commands = commands
        self._keys = keys
        self._interval_s = interval_s
        self._sweep_s = max(interval_s, min(EMPTY_SWEEP_S, visibility_timeout_s * SHARE_OF_TIMEOUT))
        self._consumed = consumed
        #: Empty queue -> when to sweep it again, on `clock`, in seconds, and the id of its record.
        self._empty: dict[str, tuple[float, bytes]] = {}

    def note(self, queue: str, record_id: bytes, *, empty: bool) -> None:
        """Note what a sweep has found."""
        if empty:
            self._empty[queue] = (clock.now_s() + self._in_turn(queue, self._sweep_s), record_id)
        else:
            self._empty.pop(queue, None)

    def forget(self, queues: Iterable[str]) -> None:
        """Have these queues swept, whatever was found there."""
        for queue in queues:
            self._empty.pop(queue, None)

    def not_among(self, queues: list[str]) -> list[str]:
        """Return those of the queues that have to be swept. Raises as `CommandConnection.ask` does."""
        queues = [queue for queue in queues if not self._is_unused(queue) and not (self._is_seen(queue) and self._waits(queue))]
        ids = {queue: self._empty[queue][1] for queue in queues if self._waits(queue)}
        if not ids:
            return queues
        keys = [self._keys.queue(queue) for queue in ids]
        places = [place for of_queue in keys for place in of_queue.places()]
        # A record of another type is none that was found empty: the sweep tells of it.
        messages, *found = self._commands.pipeline([("EXISTS", *places), *(("HGET", of_queue.meta, "id") for of_queue in keys)])
        if messages:
            return queues
        same = {queue for queue, record_id in zip(ids, found, strict=True) if (record_id or b"") == ids[queue]}
        return [queue for queue in queues if queue not in same]

    def wait_s(self, queue: str) -> float | None:
        """Return the seconds until the next look at a queue; None where it was not empty."""
        if queue not in self._empty:
            return None
        if self._is_unused(queue):
            return self._sweep_s
        alone = self._consumed.consumers_of(queue) == 1
        look_s = max(self._interval_s, self._sweep_s / 2) if alone else self._interval_s
        left_s = self._empty[queue][0] - clock.now_s()
        return max(0.0, min(self._in_turn(queue, look_s, longest_s=self._sweep_s), left_s))

    def _waits(self, queue: str) -> bool:
        return queue in self._empty and self._empty[queue][0] > clock.now_s()

    def _is_unused(self, queue: str) -> bool:
        """Return whether an empty queue has one consumer, and nothing was ever published to it: nobody else has to be woken."""
        seen = self._as_it_was(queue)
        return seen is not None and seen.consumers == 1 and seen.unpublished

    def _is_seen(self, queue: str) -> bool:
        """Return whether the looks at the list of its consumers are enough for an empty queue."""
        seen = self._as_it_was(queue)
        return seen is not None and seen.consumers >= MANY_CONSUMERS and seen.empty

    def _as_it_was(self, queue: str) -> SeenQueue | None:
        """Return what was seen of an empty queue lately, where that has the record with which it was empty."""
        seen = self._consumed.seen_lately(queue)
        return seen if seen is not None and queue in self._empty and seen.record_id == self._empty[queue][1] else None

    def _in_turn(self, queue: str, interval_s: float, *, longest_s: float = math.inf) -> float:
        """Return for how many seconds this consumer of a queue waits that would wait for `interval_s` beside few others."""
        crowd = self._consumed.consumers_of(queue) / ENOUGH_CONSUMERS
        if crowd <= 1:
            return interval_s
        # At random: those that were started together would come together.
        return min(interval_s * crowd, longest_s) * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
