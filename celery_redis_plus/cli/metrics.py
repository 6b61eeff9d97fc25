"""The metrics of a broker's queues for Prometheus: what each means, and a collector that reads them at each scrape."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from celery_redis_plus.cli.metric_descriptions import GAUGES, LABELS, PREFIX, QUEUE_COUNTERS
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber
    from celery_redis_plus.broker.queues.counters import Counters
    from celery_redis_plus.broker.queues.limiters import LimiterState
    from celery_redis_plus.broker.queues.overview import QueueOverview
    from celery_redis_plus.cli.latency_metrics import LatencyHistograms

logger = logging.getLogger(__name__)

#: Limiters that have a series.
MOST_LIMITERS: Final = 20
STATES: Final = ("ready", "delayed", "unacked", "dead")


@dataclass(frozen=True, slots=True)
class Seen:
    """One queue at a scrape."""

    overview: QueueOverview
    counters: Counters


class BrokerCollector(Collector):
    """Reads the queues of a broker whenever Prometheus asks: two round trips a queue, one a fanout exchange.

    A broker that cannot be asked gives `celery_redis_plus_up 0` and no other metric; the next scrape tries again.

    Args:
        connect: opens the connection, which stays open; called again where it failed.
        queues: names or patterns of the queues; empty for all.
        latencies: makes histograms of the event logs; None for none.
        internal: with the queues that Celery has for itself, whose names hold the ids of processes.
    """

    def __init__(
        self,
        connect: Callable[[], BrokerAdmin],
        queues: Sequence[str] = (),
        latencies: LatencyHistograms | None = None,
        *,
        internal: bool = False,
    ) -> None:
        self._connect = connect
        self._queues = queues
        self._latencies = latencies
        self._internal = internal
        # The HTTP server has a thread for each scrape.
        self._lock = lock_of(self)
        self._admin: BrokerAdmin | None = None
        self._failed = False
        #: When the last scrape began to read, on the monotonic clock, and its metrics.
        self._read_at = -math.inf
        self._last: list[Metric] = []

    def close(self) -> None:
        """Close the connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
        if self._latencies is not None:
            self._latencies.close()

    def describe(self) -> list[Metric]:
        """Return nothing: the broker is not asked before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now. Scrapes that come while another one reads share the read that follows it."""
        asked_at = time.monotonic()
        with self._lock:
            if self._read_at < asked_at:
                began = time.monotonic()
                self._last = list(self._read_all(began))
                self._read_at = began
            metrics = self._last
        yield from metrics

    def _read_all(self, began: float) -> Iterator[Metric]:
        seen = self._read()
        families = [] if seen is None else list(self._families(*seen))
        up, scrape_s = map(_gauge, ("up", "scrape_seconds"))
        up.add_metric([], 0 if seen is None else 1)
        scrape_s.add_metric([], time.monotonic() - began)
        yield from (up, scrape_s, *families)

    def _families(
        self, seen: list[Seen], subscribers: dict[str, list[Subscriber]], limiters: list[LimiterState]
    ) -> Iterator[Metric]:
        yield from _gauges(seen)
        yield from _limiter_gauges(limiters)
        yield from _fanout_gauges(subscribers)
        yield from _counters(seen)
        if self._latencies is not None:
            yield from self._latencies.families()

    def _read(self) -> tuple[list[Seen], dict[str, list[Subscriber]], list[LimiterState]] | None:
        try:
            if self._admin is None:
                self._admin = self._connect()
            queues = list(_seen(self._admin, self._queues, internal=self._internal))
            seen = queues, self._admin.subscribers(), self._admin.limiters()
            if self._latencies is not None:
                self._latencies.read()
        except (CeleryRedisPlusError, RedisError, OSError) as error:
            self.close()
            if not self._failed:
                logger.warning("the broker cannot be asked for its metrics: %s", error)
            self._failed = True
            return None
        if self._failed:
            logger.warning("the broker is asked for its metrics again")
        self._failed = False
        return seen


def _seen(admin: BrokerAdmin, queues: Sequence[str], *, internal: bool) -> Iterator[Seen]:
    overviews = admin.overview(*queues, internal=internal)
    # Without a transient one that has vanished since.
    counters = admin.counters_of(one.queue for one in overviews)
    yield from (Seen(one, counters[one.queue]) for one in overviews if one.queue in counters)


def _gauge(name: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, GAUGES[name], labels=LABELS.get(name, ("queue",)))


def _gauges(seen: list[Seen]) -> Iterator[Metric]:
    names = ("queue_messages", "queue_oldest_ready_seconds", "queue_consumers", "queue_paused", "queue_full_ratio")
    messages, oldest, consumers, paused, full = map(_gauge, names)
    for one in seen:
        overview = one.overview
        for state in STATES:
            messages.add_metric([overview.queue, state], getattr(overview, state))
        oldest.add_metric([overview.queue], overview.oldest_s or 0)
        consumers.add_metric([overview.queue], overview.consumers)
        paused.add_metric([overview.queue], 0 if overview.paused is None else 1)
        if overview.full is not None:
            full.add_metric([overview.queue], overview.full)
    yield from (messages, oldest, consumers, paused, full)


def _limiter_gauges(limiters: list[LimiterState]) -> Iterator[Metric]:
    waiting, held = map(_gauge, ("limiter_waiting_messages", "limiter_held"))
    by_name: dict[str, list[LimiterState]] = defaultdict(list)
    for one in limiters:
        by_name[one.limiter.partition(":")[0]].append(one)
    counts = {name: sum(one.waiting for one in found) for name, found in by_name.items()}
    # Keys are as many as an application likes; names are few, and yet no series of theirs may grow without end.
    for name in nlargest(MOST_LIMITERS, counts, key=lambda name: (counts[name], name)):
        waiting.add_metric([name], counts[name])
        held.add_metric([name], int(any(one.held_s for one in by_name[name])))
    yield from (waiting, held)


def _fanout_gauges(subscribers: dict[str, list[Subscriber]]) -> Iterator[Metric]:
    count, lag = map(_gauge, ("fanout_subscribers", "fanout_max_lag_messages"))
    for exchange, found in subscribers.items():
        # A reader of a durable subscriber stands beside it.
        queues = {one.queue for one in found}
        count.add_metric([exchange], len(queues))
        lag.add_metric([exchange], max((one.lag for one in found), default=0))
    yield from (count, lag)


def _counters(seen: list[Seen]) -> Iterator[Metric]:
    for name, (attribute, meaning) in QUEUE_COUNTERS.items():
        family = CounterMetricFamily(PREFIX + name, meaning, labels=["queue"])
        for one in seen:
            family.add_metric([one.overview.queue], getattr(one.counters, attribute))
        yield family
