"""Histograms of the event logs, and metrics of fanout exchanges, as Prometheus gets them."""

from __future__ import annotations

import kombu
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.cli.latency_metrics import BUCKETS, Histogram, LatencyHistograms
from celery_redis_plus.cli.metric_descriptions import PREFIX
from celery_redis_plus.cli.metrics import BrokerCollector
from celery_redis_plus.event_log.stream import EventLog
from tests.support.inbox import Inbox, declare, publish


@pytest.fixture
def collect(broker_url):
    """Scrape once: `collect()["queue_wait_seconds_count", "q"]`."""
    collector = BrokerCollector(lambda: BrokerAdmin(broker_url), latencies=LatencyHistograms(lambda: EventLog(broker_url)))
    registry = CollectorRegistry()
    registry.register(collector)

    def samples():
        families = text_string_to_metric_families(generate_latest(registry).decode())
        return {
            (sample.name.removeprefix(PREFIX), *sorted(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }

    yield samples
    collector.close()


def test_wait_and_work_are_counted_from_the_first_scrape_on(collect, connect):
    assert ("queue_wait_seconds_count", "q") not in collect()
    channel = connect(event_log=True).channel()
    declare(channel, "q")
    publish(channel, "q", "before")
    assert ("queue_wait_seconds_count", "q") not in collect()
    publish(channel, "q", "a", "b")
    inbox = Inbox(channel, "q", ack=False)
    inbox.drain(3)
    assert collect()["queue_wait_seconds_count", "q"] == 2
    for message in inbox.messages:
        message.ack()
    inbox.rest()
    found = collect()
    assert found["queue_wait_seconds_count", "q"] == 2
    assert found["queue_work_seconds_count", "q"] == 3
    assert 0 < found["queue_work_seconds_sum", "q"] < 60
    assert found["queue_work_seconds_bucket", "+Inf", "q"] == 3
    assert collect() | {("scrape_seconds",): 0} == found | {("scrape_seconds",): 0}


def test_a_histogram_counts_up_to_each_bound():
    histogram = Histogram()
    for seconds in (-1.0, 0.005, 0.3, 5000):
        histogram.observe(seconds)
    counts = dict(histogram.buckets())
    assert (counts["0.005"], counts["0.25"], counts["0.5"], counts["3600.0"], counts["+Inf"]) == (2, 2, 3, 3, 4)
    assert len(counts) == len(BUCKETS) + 1
    assert histogram.sum_s == 5000.305


def test_a_fanout_exchange_has_its_subscribers_and_the_lag_of_the_slowest(collect, channel, connect):
    news = kombu.Exchange("news", "fanout")
    slow = Inbox(connect().channel(), kombu.Queue("slow", news, auto_delete=True), ack=False, prefetch=1)
    fast = Inbox(connect().channel(), kombu.Queue("fast", news, auto_delete=True))
    for number in range(3):
        kombu.Producer(channel, news).publish(number)
    slow.drain(1)
    fast.drain(3)
    found = collect()
    assert found["fanout_subscribers", "news"] == 2
    assert 2 <= found["fanout_max_lag_messages", "news"] <= 3
