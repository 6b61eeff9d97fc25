"""Tells the server how far this process's fanout subscribers are, and that they live."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.fanout.subscriber_registry import SUBSCRIBERS_A_CALL
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.broker.fanout.entries import Mark
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor, SubscriberCursors
    from celery_redis_plus.broker.fanout.subscriber_registry import StreamEnd, SubscriberRegistry

logger = logging.getLogger(__name__)

#: Seconds between two reports of a moving cursor. After a crash, a durable subscriber gets again what it processed since.
CURSOR_REPORT_S = 1.0
#: Most seconds between two heartbeats of a cursor that does not move; never more than a third of its timeout.
SUBSCRIBER_HEARTBEAT_S = 60.0
#: Seconds between two checks of deliveries of a broken connection.
UNDECIDED_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class Report:
    """A heartbeat: what was told, when (seconds on `clock`), and how many broadcasts the stream was ahead."""

    cursor: Mark | None
    at: float
    lag: int


NEVER = Report(None, 0.0, 0)


class SubscriberHeartbeats(MaintenanceTask):
    """The maintenance task for the subscriber registry."""

    def __init__(
        self,
        registry: SubscriberRegistry,
        positions: SubscriberCursors,
    ) -> None:
        """Report what stands in `positions`."""
        self._registry = registry
        self._positions = positions
        #: What was reported last, by subscriber.
        self._reported: dict[str, Report] = {}
        self._beat_s = min(SUBSCRIBER_HEARTBEAT_S, positions.keep_s / 3)
        #: All cursors are compared with their streams at the next report.
        self._compare_all = False
        self._failures = KeyFailures(logger, "has subscribers that cannot be looked after", kind="exchange")
        #: Decides about what was delivered over a connection that broke; without one all of it comes again.
        self.active_tasks: ActiveTasks | None = None

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return self._due_at if self._positions.all() else math.inf

    @property
    def longest_lag(self) -> int:
        """How many broadcasts the slowest subscriber of this process had not processed at its last heartbeat."""
        return max((self._last(position).lag for position in self._positions.all() if position.live), default=0)

    def _last(self, position: SubscriberCursor) -> Report:
        return self._reported.get(position.id, NEVER)

    def run_soon(self) -> None:
        """Run next at once: something subscribes, or the connection was away.

        A stream that went back meanwhile gives out ids again that subscribers have read: until told, they pass over broadcasts.
        """
        self._due_at = 0.0
        self._compare_all = True

    def run(self) -> None:
        """Do what is due. Raises as `CommandConnection.call` does."""
        now = clock.now_s()
        undecided = [position for position in self._positions.all() if position.undecided and position.owner is not None]
        for position in undecided:
            position.decide(self.active_tasks)
        self._due_at = now + (UNDECIDED_CHECK_S if undecided else CURSOR_REPORT_S)
        self._give_up()
        self._report(now)

    def _give_up(self) -> None:
        for position in self._positions.expired():
            self._positions.end(position, self._registry.unsubscribe)
            logger.warning(
                "queue %r: no reader came back for its broadcasts of exchange %r within %.0f s after the connection broke; what "
                "came after entry %s %s",
                position.queue, position.keys.exchange, self._positions.keep_s, position.cursor.entry.decode(),
                "waits for its next reader" if position.durable_id else "is not delivered to it",
                extra={"queue": position.queue, "exchange": position.keys.exchange},
            )  # fmt: skip

    def _report(self, now: float) -> None:
        positions = self._positions.all()
        compare_all, self._compare_all = self._compare_all, False
        by_stream: dict[bytes, list[SubscriberCursor]] = {}
        for position in positions:
            if not position.live:
                continue
            last = self._last(position)
            if compare_all or position.cursor != last.cursor or now - last.at >= self._beat_s or not last.at:
                by_stream.setdefault(position.stream, []).append(position)
        for of_stream in by_stream.values():
            for first in range(0, len(of_stream), SUBSCRIBERS_A_CALL):
                batch = of_stream[first : first + SUBSCRIBERS_A_CALL]
                with self._failures.alone(batch[0].keys.exchange):
                    self._report_batch(batch, now)
        if len(self._reported) > 2 * len(positions) + SUBSCRIBERS_A_CALL:
            known = {position.id for position in positions}
            self._reported = {name: last for name, last in self._reported.items() if name in known}

    def _report_batch(self, batch: list[SubscriberCursor], now: float) -> None:
        cursors = [position.cursor for position in batch]
        end = self._registry.heartbeat(batch[0].keys, batch)
        for position, cursor in zip(batch, cursors, strict=True):
            self._reported[position.id] = Report(cursor, now, max(0, end.count - cursor.number))
            self._compare(position, cursor, end)
            if position.ended:
                # Its goodbye, over another connection, may have been done before this made its record anew.
                self._registry.unsubscribe(position)

    @staticmethod
    def _compare(position: SubscriberCursor, cursor: Mark, end: StreamEnd) -> None:
        if end.has_gone_back(cursor):
            position.go_back_to(end.mark)
