"""The figures of a period, over tables that are given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pandas as pd

from celery_redis_plus.spark import ingest, report, tables
from celery_redis_plus.spark.losses import LOSS_DDL
from celery_redis_plus.spark.manifest import TABLES
from celery_redis_plus.spark.summaries import Period, _backlog, _bounds, summaries
from celery_redis_plus.spark.timeline import Timeline
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.streaming import finish

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


def test_a_short_period_is_counted_by_the_second_as_its_minutes_are(spark, redis_client, broker_url, tmp_path):
    add_events(redis_client, "celery", lives(2000, spacing_us=300_000))
    add_events(redis_client, "mail", lives(300, seed=2, spacing_us=100_000))
    finish(lambda: ingest.start(spark, tmp_path, {"url": broker_url}, once=True))
    tables.aggregate(spark, tmp_path)
    read = {name: tables.read(spark, tmp_path, name) for name in TABLES}
    begin = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(minutes=2)
    period = Period(begin, begin + timedelta(minutes=5))
    events = tables.read(spark, tmp_path, "events")

    figures = summaries(read, events=events, period=period)

    seconds, minutes = figures["throughput_by_second"], figures["throughput"].set_index("minute")
    assert seconds["minute"].dt.second.nunique() == 60
    counted = list(minutes.columns)
    pd.testing.assert_frame_equal(seconds.groupby(seconds["minute"].dt.floor("min"))[counted].sum(), minutes, check_freq=False)

    timeline = Timeline.of(figures)
    assert (timeline.unit, len(timeline.steps)) == ("second", 300)
    by_queue = figures["backlog_by_second"].groupby("queue")
    for queue, rows in figures["backlog"].groupby("queue"):
        by_second = timeline.levels(by_queue.get_group(queue), "backlog")
        of_minutes = rows[rows["minute"] >= timeline.start].set_index("minute")["backlog"]
        at_ends = by_second.loc[of_minutes.index + pd.Timedelta(seconds=59)]
        assert at_ends.tolist() == of_minutes.tolist()
    assert "messages a second" in report.render(figures)
    whole = summaries(read, events=events, period=Period())
    assert "throughput_by_second" in whole, "all of it is 15 minutes"
    longer = summaries(read, events=events, period=Period(begin - timedelta(days=1), begin + timedelta(days=1)))
    assert longer["throughput"]["published"].sum() == 2300
