"""Every metric of the exporter and its meaning; docs/metrics.md is made of this."""

from __future__ import annotations

from typing import Final

from celery_redis_plus.record_fields import COUNTERS, NOW

PREFIX: Final = "celery_redis_plus_"

#: Gauges by their name without `PREFIX`.
GAUGES: Final = {
    "up": "1 if the broker could be asked, else 0.",
    "scrape_seconds": "How long it took to ask the broker.",
    "queue_messages": "Messages in the queue now, by state: ready, delayed, unacked, dead.",
    "queue_oldest_ready_seconds": "Time since the oldest ready message became ready; 0 without one.",
    "queue_consumers": "Live consumers of the queue.",
    "queue_paused": "1 while the queue is paused, else 0.",
    "queue_full_ratio": "The used part of the tightest limit: x-max-length, -bytes or x-max-pending.",
    "limiter_waiting_messages": "Messages that wait for the limiter, over its keys; of the 20 with the most.",
    "limiter_held": "1 while nothing of the limiter, or of one of its keys, passes; of the same 20.",
    "fanout_subscribers": "Subscribers, durable ones without a reader included.",
    "fanout_max_lag_messages": "Broadcasts that the slowest subscriber has not processed.",
}

#: The labels of those that have other ones than `queue`.
LABELS: Final = {
    "up": (),
    "scrape_seconds": (),
    "queue_messages": ("queue", "state"),
    "limiter_waiting_messages": ("limiter",),
    "limiter_held": ("limiter",),
    "fanout_subscribers": ("exchange",),
    "fanout_max_lag_messages": ("exchange",),
}

_COUNTED = (
    "published", "delivered", "acked", "nacked", "dead_lettered", "expired", "throttled", "blocked", "rejected", "purged",
    "cancelled", "moved", "replayed", "dead_evicted", "discarded", "vanished",
)  # fmt: skip

#: Counters by their name without `PREFIX` and the suffix `_total`: attribute of `Counters`, meaning.
QUEUE_COUNTERS: Final = {
    **{f"queue_{name}": (name, {**COUNTERS, **NOW}[name]) for name in _COUNTED},
    "queue_throttled_seconds": ("throttled_s", "Total delay of the publishes that were slowed down."),
}

#: Histograms by their name without `PREFIX`, of queues with an event log, with `exporter --latencies`.
HISTOGRAMS: Final = {
    "queue_wait_seconds": "Time from ready until a consumer takes it.",
    "queue_work_seconds": "Time from there until it is acked, rejected or put back.",
}
