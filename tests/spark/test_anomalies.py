"""Each kind of anomaly is found where it is, and only there."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pandas as pd

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark.anomalies import Thresholds, anomalies

BEGIN = datetime(2026, 1, 5, 12)  # noqa: DTZ001 - in UTC, as pandas has it
COUNTS = ("delivered", "failed_deliveries", "retried")


def minutes(name, of_minute):
    """Two hours of a table per minute: `of_minute(minute)` gives what follows name and minute."""
    return [(name, BEGIN + timedelta(minutes=minute), *of_minute(minute)) for minute in range(120)]


@pytest.fixture
def tables():
    queues = [
        *minutes("calm", lambda _: (0.5, 10)),
        # Nothing was delivered in these minutes.
        *minutes("idle", lambda minute: (None if minute % 2 else 0.5, 0)),
        *minutes("short", lambda minute: (0.001 if minute < 100 else 0.1, 10)),
        *minutes("rising", lambda minute: (1.0 if minute < 95 else 9.0, 10)),
    ]
    tasks = [
        *minutes("steady", lambda _: (10, 0, 1)),
        *minutes("storm", lambda minute: (10, 0, 8 if 70 <= minute < 80 else 0)),
        *minutes("stormy", lambda minute: (10, 0, 9 if minute >= 60 else 0)),
    ]
    workers = [
        *minutes("good1", lambda _: (100, 1, 0)),
        *minutes("good2", lambda _: (100, 1, 0)),
        *minutes("bad", lambda _: (10, 5, 0)),
        ("new", BEGIN, 3, 3, 0),
    ]
    messages = [
        ("q", "1", "t1", "shop.bill", "COMPLETED", None, 5, BEGIN),
        ("q", "2", "t2", "shop.bill", "PROCESSING", None, 1, BEGIN),
        ("q", "3", "t3", "shop.bill", "DEAD", "rejected", 4, BEGIN),
        ("q", "4", None, "shop.ship", "PENDING", None, 3, BEGIN),
        ("q", "5", "t5", "shop.bill", "MOVED", None, 3, BEGIN),
        ("q", "6", "t6", "shop.bill", "MOVED", "replaced", 3, BEGIN),
        ("q", "7", "t7", "shop.bill", "MOVED", "delivery_limit", 3, BEGIN),
    ]
    described = ["queue", "id", "task_id", "task", "state", "reason", "attempts", "first_delivery"]
    return {
        "queues": pd.DataFrame(queues, columns=["queue", "minute", "wait_p50_s", "delivered"]),
        "tasks": pd.DataFrame(tasks, columns=["task", "minute", *COUNTS]),
        "workers": pd.DataFrame(workers, columns=["worker", "minute", *COUNTS]),
        "messages": pd.DataFrame(messages, columns=described),
    }


def test_they_are_found_with_the_figures_that_they_rest_on(tables):
    found = {(row.kind, row.subject): row for row in anomalies(tables).itertuples()}

    assert set(found) == {
        ("wait time rises", "rising"),
        ("retry storm", "stormy"),
        ("worker fails often", "bad"),
        ("poison candidate", "shop.bill t3 in q"),
        ("poison candidate", "shop.ship 4 in q"),
        ("poison candidate", "shop.bill t7 in q"),
    }
    rising, storm = found["wait time rises", "rising"], found["retry storm", "stormy"]
    assert (rising.value, rising.usual) == (9.0, 1.0)
    assert (storm.value, storm.count) == (0.9, 540)
    assert storm.since == BEGIN + timedelta(hours=1)
    assert found["worker fails often", "bad"].value == 0.5
    assert found["poison candidate", "shop.bill t3 in q"].value == 4


def test_workers_that_never_failed_are_none(tables):
    tables["workers"]["failed_deliveries"] = 0
    assert "worker fails often" not in set(anomalies(tables)["kind"])


def test_thresholds_move_the_limits(tables):
    limits = Thresholds.parse({"retry_share": "0.1", "wait_factor": "10", "poison_attempts": "4", "failure_factor": "100"})

    found = {(row.kind, row.subject) for row in anomalies(tables, limits).itertuples()}

    assert found == {
        ("retry storm", "steady"),
        ("retry storm", "storm"),
        ("retry storm", "stormy"),
        ("poison candidate", "shop.bill t3 in q"),
    }


@pytest.mark.parametrize(
    ("given", "message"), [({"retries": "1"}, "thresholds: wait_factor"), ({"retry_share": "x"}, "allowed: a number")]
)
def test_thresholds_that_are_none_are_refused(given, message):
    with pytest.raises(InvalidArgument, match=message):
        Thresholds.parse(given)
