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

#: Most seconds between two sweeps of an empty queue, and their share of the visibility timeout: a message that comes is swept
#: long before its lease can end. Of many consumers each sweeps more rarely, but looks as often: it may be left alone meanwhile.
RESTING_SWEEP_S, SHARE_OF_TIMEOUT = 20.0, 1 / 15
#: So many consumers look at each interval; of more, each does so more rarely.
ENOUGH_CONSUMERS = 40
#: Of so many consumers none looks more often than at the list of consumers, and that tells the same.
MANY_CONSUMERS = 200
#: Seconds for which counts what the last look at the list of consumers has told of a queue: it comes every 20 s by default.
SEEN_S = 25.0


class QueueCrowds:
    """What the last look at the list of its consumers has told of each queue that this process consumes."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.seen: dict[str, SeenQueue] = {}

    def consumers_of(self, queue: str) -> int:
        """Return how many look after a queue, 0 where that is unknown; of one that the leader sweeps it is 0, too."""
        seen = self.seen.get(queue)
        return 0 if seen is None else seen.consumers

    def lately(self, queue: str) -> SeenQueue | None:
        """Return what was seen of a queue within `SEEN_S`, None where nothing was."""
        seen = self.seen.get(queue)
        return seen if seen is not None and clock.now_s() - seen.at < SEEN_S else None


class RestingQueues:
    """The empty queues of a sweeper."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        crowds: QueueCrowds,
        *,
        interval_s: float,
        visibility_timeout_s: float,
    ) -> None:
        """Ask over `commands`; `crowds` tells how many consumers look after a queue."""
        self._commands = commands
        self._keys = keys
        self._interval_s = interval_s
        self._rest_s = max(interval_s, min(RESTING_SWEEP_S, visibility_timeout_s * SHARE_OF_TIMEOUT))
        self._crowds = crowds
        #: Empty queue -> when to sweep it again, on `clock`, in seconds, and the id of its record.
        self._resting: dict[str, tuple[float, bytes]] = {}

    def note(self, queue: str, record_id: bytes, *, empty: bool) -> None:
        """Note what a sweep has found."""
        if empty:
            self._resting[queue] = (clock.now_s() + self._in_turn(queue, self._rest_s), record_id)
        else:
            self._resting.pop(queue, None)

    def forget(self, queues: Iterable[str]) -> None:
        """Have these queues swept, whatever was found there."""
        for queue in queues:
            self._resting.pop(queue, None)

    def awake(self, queues: list[str]) -> list[str]:
        """Return those of the queues that have to be swept. Raises as `CommandConnection.ask` does."""
        queues = [queue for queue in queues if not self._is_unused(queue) and not (self._is_seen(queue) and self._rests(queue))]
        ids = {queue: self._resting[queue][1] for queue in queues if self._rests(queue)}
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
        """Return the seconds until the next look at a queue; None where it does not rest."""
        if queue not in self._resting:
            return None
        if self._is_unused(queue):
            return self._rest_s
        alone = self._crowds.consumers_of(queue) == 1
        look_s = max(self._interval_s, self._rest_s / 2) if alone else self._interval_s
        left_s = self._resting[queue][0] - clock.now_s()
        return max(0.0, min(self._in_turn(queue, look_s, longest_s=self._rest_s), left_s))

    def _rests(self, queue: str) -> bool:
        return queue in self._resting and self._resting[queue][0] > clock.now_s()

    def _is_unused(self, queue: str) -> bool:
        """Return whether a resting queue has one consumer, and nothing was ever published to it: nobody else has to be woken."""
        seen = self._as_it_was(queue)
        return seen is not None and seen.consumers == 1 and seen.unpublished

    def _is_seen(self, queue: str) -> bool:
        """Return whether the looks at the list of its consumers are enough for a resting queue."""
        seen = self._as_it_was(queue)
        return seen is not None and seen.consumers >= MANY_CONSUMERS and seen.empty

    def _as_it_was(self, queue: str) -> SeenQueue | None:
        """Return what was seen of a resting queue lately, where that has the record with which it rests."""
        seen = self._crowds.lately(queue)
        return seen if seen is not None and queue in self._resting and seen.record_id == self._resting[queue][1] else None

    def _in_turn(self, queue: str, interval_s: float, *, longest_s: float = math.inf) -> float:
        """Return for how many seconds this consumer of a queue rests that would rest for `interval_s` beside few others."""
        crowd = self._crowds.consumers_of(queue) / ENOUGH_CONSUMERS
        if crowd <= 1:
            return interval_s
        # At random: those that were started together would come together.
        return min(interval_s * crowd, longest_s) * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
