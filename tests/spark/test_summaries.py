"""The figures of a period, over tables that are given."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from celery_redis_plus.spark.losses import LOSS_DDL
from celery_redis_plus.spark.summaries import Period, _backlog, _bounds

QUEUES = "queue string, minute timestamp, backlog bigint"


def at(hour, minute=0):
    return datetime(2026, 1, 31, hour, minute, tzinfo=UTC)


@pytest.fixture
def queues(spark):
    rows = [("stuck", at(8), 10), ("stuck", at(9), 40), ("celery", at(9, 30), 3), ("celery", at(12), 5), ("celery", at(14), 0)]
    return spark.createDataFrame(rows, QUEUES)


def test_a_period_begins_with_the_backlogs_before_it(queues):
    found = _backlog(queues, Period(at(11), at(13))).toPandas()
    assert found[["queue", "backlog"]].to_numpy().tolist() == [["stuck", 40], ["celery", 3], ["celery", 5]]
    assert len(_backlog(queues, Period()).toPandas()) == 5


def test_charts_end_where_the_tables_do(queues):
    def hours(period):
        row = _bounds(queues, period).toPandas().loc[0]
        return [row["start"].strftime("%H:%M"), row["end"].strftime("%H:%M")]

    assert hours(Period()) == ["08:00", "14:01"]
    assert hours(Period(at(0), at(10))) == ["08:00", "10:00"]
    assert hours(Period(at(11), at(23))) == ["11:00", "14:01"]


def test_losses_are_told_in_the_periods_that_they_touch(spark):
    times = [(None, at(9)), (at(9), at(11)), (at(12), None)]
    rows = [("celery", "trimmed", 1, 1, 5, 5, start, end, at(12)) for start, end in times]
    frame = spark.createDataFrame(rows, LOSS_DDL)

    def told(period):
        return frame.where(period.touches("from_at", "to_at")).count()

    assert told(Period()) == 3
    assert told(Period(at(8), at(10))) == 2
    assert told(Period(at(10), at(11))) == 1
    assert told(Period(at(13))) == 1
    assert told(Period(None, at(7))) == 1
