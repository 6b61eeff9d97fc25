"""Promotes delayed messages when they are due, expires messages, and recovers those whose lease has ended.

Of all processes that consume a queue one has the lease of its sweep and sleeps until the exact next due time; the others try
when that lease ends. A publisher whose message is due earlier sends the queue's schedule wakeup. The sweep also sends lost
wakeups again and trims the dead letters to their limits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.failures import log_deaths, read_deaths
from celery_redis_plus.connection.refused_calls import describe_refusal
from celery_redis_plus.maintenance.empty_queues import EmptyQueues
from celery_redis_plus.maintenance.lease_heartbeats import interval_s
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

logger = logging.getLogger(__name__)

#: Most seconds between two sweeps of a queue: within them, and the server's answer, a lost wakeup is sent again.
SWEEP_INTERVAL_S = 4.0
#: Seconds by which a lease outlasts the next pass. A frozen sweeper that also took a wakeup delays the next one by the
#: interval and this, which stays under the 5 s that the design promises.
LEASE_MARGIN_S = 0.5
#: Entries that one script call looks at, of all its queues and kinds: some 10 ms of the server's time.
ENTRIES_A_SWEEP = 500
#: Queues in one script call.
QUEUES_A_SWEEP = 50
#: Seconds by which a pass may come early, to serve queues together that are due together.
TOGETHER_S = 0.0005
#: Wait after an outage, or a step of the server's clock, before messages are recovered, in intervals of the heartbeat.
GRACE_INTERVALS = 2


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """What a sweep holds messages to."""

    visibility_timeout_s: float
    #: Failed deliveries after which a message dies; None is never.
    delivery_limit: int | None
    dead_letter_max: int
    dead_letter_ttl_s: float


class Sweeper(MaintenanceTask):
    """The maintenance task that makes messages claimable."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        consumed: ConsumedQueues,
        *,
        name: str,
        limits: SweepLimits,
        forward: Callable[[str], None],
        note_id: Callable[[str, bytes], None] = lambda *_: None,
    ) -> None:
        """Sweep over `commands` under `name`, which leases are held by.

        `forward` is called with a queue that has messages for its dead-letter exchange, `note_id` with a queue and the id that
        its record has now, an empty one where it has none. `consumed` tells how many consumers sweep a queue.
        """
        self._commands = commands
        self._keys = keys
        self._name = name
        self._forward = forward
        self._note_id = note_id
        visibility_timeout_s = limits.visibility_timeout_s
        self._bounds = (
            -1 if limits.delivery_limit is None else limits.delivery_limit,
            limits.dead_letter_max,
            _ms(limits.dead_letter_ttl_s),
        )
        self._visibility_ms = _ms(visibility_timeout_s)
        self._interval_s = min(SWEEP_INTERVAL_S, visibility_timeout_s / 6)
        self._lease_s = self._interval_s + LEASE_MARGIN_S
        self._grace_s = GRACE_INTERVALS * interval_s(visibility_timeout_s)
        # The last heartbeat may be as old when the outage begins: what is left of the timeout is for the way back.
        self._longest_gap_s = max(visibility_timeout_s / 3, self._lease_s * 1.5)
        self._empty = EmptyQueues(
            commands, keys, consumed, interval_s=self._interval_s, visibility_timeout_s=visibility_timeout_s
        )
        self._next_run_at: dict[str, float] = {}
        self._take_over: set[str] = set()
        #: Queues that cannot be swept, or not all of them: why, as it was logged, and when a pass failed last.
        self._failing: dict[str, tuple[str, float]] = {}
        #: Passes over a queue, and messages that they recovered.
        self.sweeps = self.recovered = 0

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity without queues."""
        return min(self._next_run_at.values(), default=float("inf"))

    def watch(self, queues: Iterable[str]) -> None:
        """Sweep these queues from now on, new ones at once."""
        wanted = set(queues)
        for gone in self._next_run_at.keys() - wanted:
            del self._next_run_at[gone]
            self._empty.forget([gone])
        for new in wanted - self._next_run_at.keys():
            self._next_run_at[new] = 0.0

    def run_soon(self, queue: str | None = None) -> None:
        """Run next at once: for one queue because its timer rang, for all after the connection was away."""
        if queue is None:
            self._next_run_at = dict.fromkeys(self._next_run_at, 0.0)
            self._empty.forget(self._next_run_at)
        elif queue in self._next_run_at:
            self._next_run_at[queue] = 0.0
            self._take_over.add(queue)

    def run(self) -> None:
        """Sweep the queues that are due. Raises as `CommandConnection.call` does."""
        slice_ = Slice()
        soon = clock.now_s() + TOGETHER_S
        # Those first that have waited longest: a call may not come to all of its queues.
        due = sorted((queue for queue, at in self._next_run_at.items() if at <= soon), key=self._next_run_at.__getitem__)
        urgent = [queue for queue in due if queue in self._take_over]
        ordinary = [queue for queue in due if queue not in self._take_over]
        for queues, take_over in ((urgent, True), (ordinary, False)):
            for at in range(0, len(queues), QUEUES_A_SWEEP):
                if slice_.over:
                    # The rest stays due.
                    return
                part = queues[at : at + QUEUES_A_SWEEP]
                unswept = part if take_over else self._empty.not_among(part)
                if unswept:
                    reached = self._sweep(unswept, take_over=take_over)
                    part = [queue for queue in part if queue not in unswept or queue in reached]
                for queue in part:
                    self._rest(queue)
                self._take_over.difference_update(part)

    def _rest(self, queue: str) -> None:
        wait_s = self._empty.wait_s(queue)
        if wait_s is not None:
            self._next_run_at[queue] = clock.now_s() + wait_s

    def _sweep(self, queues: list[str], *, take_over: bool) -> set[str]:
        """Sweep queues with one call; return those that it came to. The others stay due."""
        keys: list[bytes] = []
        for queue in queues:
            keys += self._keys.queue(queue).state_keys
        reply = self._commands.call(
            script("sweep"), keys, self._name, _ms(self._lease_s), _ms(self._interval_s), ENTRIES_A_SWEEP, int(take_over),
            _ms(self._grace_s), _ms(self._longest_gap_s), *self._bounds, self._visibility_ms,
        )  # fmt: skip
        now = clock.now_s()
        reached = set()
        deaths = list(read_deaths(reply[SWEEP_VALUES * len(queues) :]))
        for number, queue in enumerate(queues):
            swept = Swept(*reply[SWEEP_VALUES * number : SWEEP_VALUES * (number + 1)])
            if swept.state == NOT_REACHED:
                continue
            reached.add(queue)
            self._note_id(queue, swept.id)
            if queue in self._next_run_at:
                self._next_run_at[queue] = now + swept.wait_ms / 1000
            self._empty.note(queue, swept.id, empty=swept.state == EMPTY)
            self.sweeps += swept.state != NOT_SWEPT
            self.recovered += swept.recovered
            _report(queue, swept)
            if swept.died:
                log_deaths(queue, swept.died, [death for death in deaths if death.meta == self._keys.queue(queue).meta])
            self._note_failure(queue, swept)
            if swept.dying:
                self._forward(queue)
        return reached

    def _note_failure(self, queue: str, swept: Swept) -> None:
        text, now = swept.failure.decode("utf-8", "replace"), clock.now_s()
        known, failed_at = self._failing.get(queue, ("", now))
        if text:
            self._failing[queue] = (text, now)
            if text != known:
                self._log_failure(queue, text, whole=swept.state == NOT_SWEPT)
        # A message that fails is tried again after the interval; passes in between go well.
        elif known and now - failed_at > 2 * self._interval_s:
            del self._failing[queue]
            logger.info("queue %r is swept again", queue, extra={"queue": queue})

    def _log_failure(self, queue: str, text: str, *, whole: bool) -> None:
        of = self._keys.queue(queue)
        places = [*of.state_keys, of.events, of.events_meta, of.events_readers]
        about = describe_refusal(ResponseError(text), ("EVALSHA", script("sweep").sha, len(places), *places))
        logger.error(
            "queue %r cannot be swept%s (%s%s); trying again every %g s",
            queue,
            "" if whole else ", in a part of its messages or events",
            text,
            about and f": {about}",
            self._interval_s,
            extra={"queue": queue},
        )


@dataclass(frozen=True, slots=True)
class Swept:
    """What one pass did in one queue, as the script returns it."""

    wait_ms: int
    #: 0: another process has the lease; 1: it was swept; `EMPTY`: there was nothing to sweep; `NOT_REACHED`: it stays due.
    state: int
    promoted: int
    recovered: int
    died: int
    expired: int
    discarded: int
    dying: int
    evicted: int
    overrun: int
    skipped: int
    damaged: int
    failure: bytes
    #: Of the queue's record; empty where it has none.
    id: bytes


#: `Swept.state` where another process has the lease, of an empty queue without events, and of one that the call did not come to.
NOT_SWEPT, EMPTY, NOT_REACHED = 0, 2, 3
#: Values that the sweep returns for a queue.
SWEEP_VALUES = len(fields(Swept))


#: What is logged of a queue, by the count that says so: the level, and the line.
LINES: Final = {
    "recovered": (logging.INFO, "recovered %d message(s) of queue %r: their consumers gave no sign of life"),
    "expired": (logging.INFO, "%d message(s) of queue %r expired"),
    "discarded": (logging.INFO, "%d dead message(s) of the transient queue %r are discarded"),
    "evicted": (logging.WARNING, "%d old dead letter(s) of queue %r are removed (options dead_letter_max, dead_letter_ttl)"),
    "overrun": (
        logging.WARNING,
        "%d event(s) of queue %r are removed that a registered reader has not read (option event_log_hard_maxlen)",
    ),
    "skipped": (
        logging.WARNING,
        "%d event(s) of queue %r were not written: the server's memory is full, or somebody else wrote to their key",
    ),
    "damaged": (
        logging.ERROR,
        "%d message(s) of queue %r are set aside: somebody else has written under their keys (counter `damaged`)",
    ),
}


def _report(queue: str, swept: Swept) -> None:
    for name, (level, line) in LINES.items():
        count = getattr(swept, name)
        if count:
            logger.log(level, line, count, queue, extra={"queue": queue})


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
