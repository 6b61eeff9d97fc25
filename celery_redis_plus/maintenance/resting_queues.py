"""Knows which queues were empty at their last sweep: until the next one, plain commands tell that they still are.

An empty queue has nothing to sweep but the wakeup of a message that is published meanwhile and whose waiting consumer dies. So
the queue's other consumers look. One alone has nobody to wake, and many of them look in turn. A look also tells whether the queue
was declared again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from celery_redis_plus import clock

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.shared_work import SharedWork

#: Most seconds between two sweeps of an empty queue, and their share of the visibility timeout: a message that comes is swept
#: long before its lease can end.
RESTING_SWEEP_S, SHARE_OF_TIMEOUT = 20.0, 1 / 15
#: So many consumers look at each interval; of more, each looks more rarely.
ENOUGH_CONSUMERS = 40
#: The only consumer of a transient queue looks by extending the queue's life, where it does so as often as this, in seconds.
OFTEN_S = 5.0


class RestingQueues:
    """The empty queues of a sweeper."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        shared: SharedWork,
        *,
        interval_s: float,
        visibility_timeout_s: float,
    ) -> None:
        """Ask over `commands`; `shared` tells how many consumers look after a queue."""
        self._commands = commands
        self._keys = keys
        self._interval_s = interval_s
        self._rest_s = max(interval_s, min(RESTING_SWEEP_S, visibility_timeout_s * SHARE_OF_TIMEOUT))
        self._shared = shared
        #: Empty queue -> when to sweep it again, on `clock`, in seconds, and the id of its record.
        self._resting: dict[str, tuple[float, bytes]] = {}

    def note(self, queue: str, record_id: bytes, *, empty: bool) -> None:
        """Note what a sweep has found."""
        if empty:
            self._resting[queue] = (clock.now_s() + self._rest_s, record_id)
        else:
            self._resting.pop(queue, None)

    def forget(self, queues: Iterable[str]) -> None:
        """Have these queues swept, whatever was found there."""
        for queue in queues:
            self._resting.pop(queue, None)

    def awake(self, queues: list[str]) -> list[str]:
        """Return those of the queues that have to be swept. Raises as `CommandConnection.pipeline` does."""
        now = clock.now_s()
        ids = {queue: self._resting[queue][1] for queue in queues if queue in self._resting and self._resting[queue][0] > now}
        if not ids:
            return queues
        keys = [self._keys.queue(queue) for queue in ids]
        places = [place for of_queue in keys for place in of_queue.places()]
        messages, *found = self._commands.pipeline([("EXISTS", *places), *(("HGET", of_queue.meta, "id") for of_queue in keys)])
        if messages:
            return queues
        same = {queue for queue, record_id in zip(ids, found, strict=True) if (record_id or b"") == ids[queue]}
        return [queue for queue in queues if queue not in same]

    def wait_s(self, queue: str) -> float | None:
        """Return the seconds until the next look at a queue; None where it does not rest."""
        if queue not in self._resting:
            return None
        left_s = self._resting[queue][0] - clock.now_s()
        consumers = self._shared.consumers_of(queue)
        if consumers == 1 and self._shared.touched_s.get(queue, math.inf) <= OFTEN_S:
            return left_s
        look_s = self._interval_s
        if consumers > ENOUGH_CONSUMERS:
            # At random: those that were started together would look together.
            look_s *= consumers / ENOUGH_CONSUMERS * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
        return min(look_s, left_s)
