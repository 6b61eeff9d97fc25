"""How long messages wait, and how long work on them takes: histograms that the exporter makes of the event logs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import HistogramMetricFamily

from celery_redis_plus.cli.metric_descriptions import HISTOGRAMS, PREFIX
from celery_redis_plus.errors import NoEvents
from celery_redis_plus.event_log.tail import Tail

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import EventLogs
    from celery_redis_plus.event_log.tail import TailedEvent

#: Upper bounds of the buckets, seconds.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
#: Reads of up to 500 events a queue that one scrape makes at most; the next one goes on there.
READS_A_SCRAPE: Final = 100
#: Messages of which the last event is remembered.
REMEMBERED: Final = 100_000
#: Events after which a message is ready, and those that end work on it.
READY: Final = frozenset({"published", "promoted", "recovered", "requeued", "replayed"})
WORK_ENDS: Final = frozenset({"acked", "retried", "rejected", "dead_lettered"})
WAIT, WORK = "queue_wait_seconds", "queue_work_seconds"


@dataclass(slots=True)
class Histogram:
    """Observations of one queue."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one; of a clock that went back, 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, observations up to it)."""
        total, found = 0, []
        for bound, count in zip((*BUCKETS, math.inf), self.counts, strict=True):
            total += count
            found.append(("+Inf" if math.isinf(bound) else str(float(bound)), float(total)))
        return found


class LatencyHistograms:
    """Follows the event logs from its first read on.

    Args:
        open_log: opens the event logs, which stay open; called again where it failed.
        queues: names or patterns, separated by commas.
    """

    def __init__(self, open_log: Callable[[], EventLogs], queues: str = "*") -> None:
        self._open_log = open_log
        self._queues = queues
        self._log: EventLogs | None = None
        self._tail: Tail | None = None
        #: Message -> its last event, and when, µs.
        self._last: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._histograms: dict[str, dict[str, Histogram]] = {WAIT: {}, WORK: {}}

    def close(self) -> None:
        """Close the connection; what was counted stays."""
        log, self._log, self._tail = self._log, None, None
        if log is not None:
            log.close()

    def read(self) -> None:
        """Count what has happened since the last read. Raises as `Tail.read` does, but for queues without events."""
        try:
            if self._tail is None:
                self._log = self._log or self._open_log()
                self._tail = Tail(self._log, self._queues)
            for _ in range(READS_A_SCRAPE):
                found = self._tail.read()
                for one in found:
                    self._count(one)
                if not found:
                    return
        except NoEvents:
            return

    def families(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histograms as they are now."""
        for name, by_queue in self._histograms.items():
            family = HistogramMetricFamily(PREFIX + name, HISTOGRAMS[name], labels=["queue"])
            for queue, histogram in by_queue.items():
                family.add_metric([queue], histogram.buckets(), histogram.sum_s)
            yield family

    def _count(self, one: TailedEvent) -> None:
        event = one.event
        before, since = self._last.pop(event.id, ("", 0))
        if event.event == "claimed" and before in READY:
            self.observe(WAIT, one.queue, event.ts - since)
        elif event.event in WORK_ENDS and before == "claimed" and event.reason != "early":
            self.observe(WORK, one.queue, event.ts - since)
        if event.event in READY or event.event in {"claimed", "delayed", "retried"}:
            self._last[event.id] = (event.event, event.ts)
            if len(self._last) > REMEMBERED:
                self._last.popitem(last=False)

    def observe(self, name: str, queue: str, took_us: int) -> None:
        """Count one observation of a histogram, µs."""
        self._histograms[name].setdefault(queue, Histogram()).observe(took_us / 1_000_000)
