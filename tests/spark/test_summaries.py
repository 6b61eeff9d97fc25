"""The figures of a period, by plain Arrow. No Java."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pandas", reason="needs the extra `spark`")

import pandas as pd
import pyarrow as pa

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark import report
from celery_redis_plus.spark import snapshot as snapshots
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.expiry import expire
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.layers import LAYOUTS, Layers
from celery_redis_plus.spark.losses import TRIMMED, Loss, with_losses
from celery_redis_plus.spark.manifest import MIXED, PARTIALS, Manifest
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.summaries import Period, backlog, bounds, losses, summaries
from celery_redis_plus.spark.timeline import Timeline
from tests.spark.model import aggregate_in_python, percentile
from tests.support.event_streams import START_MS, lives
from tests.support.stored_events import StoredEvents

BEGIN = datetime.fromtimestamp(START_MS / 1000, UTC)


def at(hour, minute=0):
    return datetime(2026, 1, 31, hour, minute, tzinfo=UTC)


@pytest.fixture
def stored(tmp_path):
    """Tables of two queues, made in three portions; and the model of the same events."""
    made, events = (
        StoredEvents(tmp_path),
        {"celery": lives(2000, spacing_us=300_000), "mail": lives(300, seed=2, spacing_us=100_000)},
    )
    for part in range(3):
        made.add({queue: of[len(of) * part // 3 : len(of) * (part + 1) // 3] for queue, of in events.items()})
        fold(tmp_path)
    return aggregate_in_python(events)


def given(root, *, queues=(), missing=()):
    """A folder with rows (queue, minute, backlog) and losses."""
    schema = LAYOUTS["queues"].schema
    rows, levels = [], {}
    for queue, minute, level in queues:
        change = level - levels.get(queue, 0)
        rows.append(
            dict.fromkeys(schema.names, 0)
            | {"queue": queue, "minute": minute, "backlog": level, "backlog_change": change}
        )  # fmt: skip
        levels[queue] = level
    rows = [row | {"date": row["minute"].date(), **{name: None for name in schema.names if name.endswith("_s")}} for row in rows]
    manifest = Manifest().following()
    layers = Layers(opened(root), manifest)
    layers.add("queues", "2026-01-31", pa.Table.from_pylist(rows, schema=schema))
    manifest.backlogs = "backlogs/all.parquet"
    layers.storage.write_table(
        manifest.backlogs, pa.table({"queue": pa.array(levels, pa.string()), "backlog": pa.array(levels.values(), pa.int64())})
    )
    manifest.folded["run"] = 0
    manifest.tables[PARTIALS]["2026-01-31"] = []
    manifest.losses = with_losses(layers, manifest, missing)
    manifest.write(opened(root))
    return Snapshot(root)


QUEUES = (("stuck", at(8), 10), ("stuck", at(9), 40), ("celery", at(9, 30), 3), ("celery", at(12), 5), ("celery", at(14), 0))


def rows_in(snapshot, period):
    return snapshots.frame(snapshot.read("queues", ("queue", "minute", "backlog"), period.holds("minute"), period.days))


def test_a_period_begins_with_the_backlogs_before_it(tmp_path):
    snapshot = given(tmp_path, queues=QUEUES)
    for period, wanted in (
        (Period(at(11), at(13)), [["celery", 3], ["stuck", 40], ["celery", 5]]),
        (Period(), [["stuck", 10], ["stuck", 40], ["celery", 3], ["celery", 5], ["celery", 0]]),
    ):
        found = backlog(snapshot, period, rows_in(snapshot, period))
        assert sorted(found[["queue", "backlog"]].to_numpy().tolist()) == sorted(wanted)
        assert found["minute"].is_monotonic_increasing


def test_a_report_of_a_day_reads_that_day_and_those_in_which_quiet_queues_had_an_event(tmp_path):
    made = StoredEvents(tmp_path)
    day_ms = 86_400_000
    for day in range(8):
        start_ms = START_MS + day * day_ms
        busy = lives(50, seed=day, start_ms=start_ms)
        # Day 2 leaves a backlog that day 5 ends.
        quiet = lives(20, seed=9, start_ms=START_MS + 2 * day_ms)
        later = [replace(event, ts=event.ts + 3 * day_ms * 1000) for event in quiet[25:]]
        given = {"busy": busy, "quiet": {2: quiet[:25], 5: later}.get(day, [])}
        made.add({queue: events for queue, events in given.items() if events})
        fold(tmp_path)
    third = (BEGIN + timedelta(days=3)).replace(hour=0, minute=0)
    period = Period(third, third + timedelta(days=1))
    snapshot = Snapshot(tmp_path)
    whole = summaries(snapshot, period=period)
    levels = whole["backlog"].set_index("queue")["backlog"]
    rows = snapshots.frame(snapshot.read("queues", ("queue", "minute", "backlog")))
    before = rows[(rows["queue"] == "quiet") & (rows["minute"] < period.start.replace(tzinfo=None))]
    assert levels["quiet"] == before.sort_values("minute")["backlog"].iloc[-1] > 0

    # The ends of the charts are asked of the first and of the last day.
    days = sorted(snapshot.manifest.tables["queues"])
    needed = {days[0], days[-1], *days[3:6]}
    for table in ("messages", "queues", "tasks", "workers"):
        for day, files in snapshot.manifest.tables[table].items():
            if day not in (needed if table == "queues" else {days[3], MIXED}):
                for file in files:
                    (tmp_path / file).unlink()
    again = summaries(Snapshot(tmp_path), period=period)
    for name, figure in whole.items():
        pd.testing.assert_frame_equal(figure, again[name])


def test_charts_end_where_the_tables_do(tmp_path):
    snapshot = given(tmp_path, queues=QUEUES)

    def hours(period):
        row = bounds(snapshot, period).loc[0]
        return [row["start"].strftime("%H:%M"), row["end"].strftime("%H:%M")]

    assert hours(Period()) == ["08:00", "14:01"]
    assert hours(Period(at(0), at(10))) == ["08:00", "10:00"]
    assert hours(Period(at(11), at(23))) == ["11:00", "14:01"]


def test_losses_are_told_in_the_periods_that_they_touch(tmp_path):
    def us(moment):
        return moment and int(moment.timestamp() * 1e6)

    times = [(None, at(9)), (at(9), at(11)), (at(12), None)]
    missing = [Loss("celery", TRIMMED, 1, 1, 5, 5, us(start), us(end), us(at(12))) for start, end in times]
    snapshot = given(tmp_path, queues=QUEUES, missing=missing)

    def told(period):
        return len(losses(snapshot, period))

    assert told(Period()) == 3
    assert told(Period(at(8), at(10))) == 2
    assert told(Period(at(10), at(11))) == 1
    assert told(Period(at(13))) == 1
    assert told(Period(None, at(7))) == 1


def test_the_figures_are_those_of_the_model(stored, tmp_path):
    figures = summaries(Snapshot(tmp_path), period=Period(), against=Period(None, BEGIN + timedelta(minutes=1)))
    messages = list(stored["messages"].items())
    assert dict(figures["states"].to_numpy().tolist()) == Counter(row["state"] for _, row in messages)
    assert figures["states"]["count"].is_monotonic_decreasing
    for key, place in (("queue", None), ("task", "task")):
        found = figures[f"by_{key}"].set_index(key)
        names = {row[place] if place else of[0] for of, row in messages} - {None}
        assert set(found.index) == names
        for name in names:
            own = [row for of, row in messages if (row[place] if place else of[0]) == name]
            line = found.loc[name]
            assert line["messages"] == len(own)
            assert line["completed"] == sum(row["state"] == "COMPLETED" for row in own)
            assert line["redeliveries"] == sum(max(row["attempts"] - 1, 0) for row in own)
            for column in ("wait", "run"):
                values = [row[f"{column}_s"] for row in own if row[f"{column}_s"] is not None]
                for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                    assert line[f"{column}_{label}_s"] == pytest.approx(percentile(values, share), abs=1e-9)
    runs = sorted((row["run_s"] for _, row in messages if row["run_s"] is not None), reverse=True)
    assert figures["slowest"]["run_s"].tolist() == pytest.approx(runs[:20])
    assert len(figures["most_repeated"]) == min(20, sum(row["attempts"] > 1 for _, row in messages))
    bad = Counter(row["state"] for _, row in messages if row["state"] in {"FAILED", "DEAD", "RETRIED", "RETRYABLE"})
    assert figures["failures"].groupby("state")["count"].sum().to_dict() == bad
    assert figures["dead_letters"]["count"].sum() == bad["DEAD"]
    assert figures["throughput"]["published"].sum() == len(messages)
    assert figures["headline"]["published"].tolist()[0] == len(messages)
    assert 0 < figures["comparison"]["messages_before"].sum() == figures["headline"]["published"].tolist()[1] < len(messages)
    page = report.render(figures)
    assert page.count("<svg") == 4
    again = report.render(summaries(Snapshot(tmp_path), period=Period(), against=Period(None, BEGIN + timedelta(minutes=1))))
    assert re.sub(r"Made [-0-9: ]+", "", page) == re.sub(r"Made [-0-9: ]+", "", again), "the same tables are the same page"


@pytest.mark.parametrize("at_once", [100, 250_000])
def test_a_short_period_is_counted_by_the_second_as_its_minutes_are(stored, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("celery_redis_plus.spark.seconds.MESSAGES_AT_ONCE", at_once)
    snapshot = Snapshot(tmp_path)
    begin = BEGIN + timedelta(minutes=2)
    period = Period(begin, begin + timedelta(minutes=5))

    figures = summaries(snapshot, period=period)

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
    whole = summaries(snapshot, period=Period())
    assert "throughput_by_second" in whole, "all of it is 15 minutes"
    longer = summaries(snapshot, period=Period(begin - timedelta(days=1), begin + timedelta(days=1)))
    assert longer["throughput"]["published"].sum() == 2300


@pytest.mark.parametrize("kinds", [["events"], ["messages"], ["events", "messages"]])
def test_what_the_minutes_alone_still_have_is_shown_by_the_minute(stored, tmp_path, kinds):
    begin = BEGIN + timedelta(minutes=2)
    period = Period(begin, begin + timedelta(minutes=5))
    before = summaries(Snapshot(tmp_path), period=period)
    expire(tmp_path, (BEGIN + timedelta(days=2)).date(), kinds=kinds)
    figures = summaries(Snapshot(tmp_path), period=period)
    assert "throughput_by_second" in before
    assert "throughput_by_second" not in figures
    pd.testing.assert_frame_equal(figures["throughput"], before["throughput"])
    assert Timeline.of(figures).unit == "minute"
    assert "messages a minute" in report.render(figures)
    assert [found for found in check(tmp_path) if found.wrong] == []


def test_a_period_without_anything_is_a_page(stored, tmp_path):
    figures = summaries(Snapshot(tmp_path), period=Period(at(1), at(2)), against=Period(at(3), at(4)))
    assert figures["headline"]["published"].tolist() == [0, 0]
    assert "None." in report.render(figures)


def test_a_folder_without_tables_is_told_so(tmp_path):
    with pytest.raises(TablesUnusable, match=r"spark ingest.*aggregate"):
        Snapshot(tmp_path)
    StoredEvents(tmp_path).add({"celery": lives(3)})
    with pytest.raises(TablesUnusable, match="aggregate"):
        Snapshot(tmp_path)


def test_an_event_of_a_clock_that_was_centuries_ahead_spoils_no_report(tmp_path):
    made = StoredEvents(tmp_path)
    ahead_us = round(datetime(2300, 1, 1, tzinfo=UTC).timestamp() * 1e6)
    made.add({"celery": lives(50), "other": [replace(event, ts=ahead_us) for event in lives(1)]})
    fold(tmp_path)
    first = BEGIN.replace(hour=0, minute=0)
    for period in (Period(first, first + timedelta(days=1)), Period()):
        figures = summaries(Snapshot(tmp_path), period=period)
        assert "celery" in set(figures["by_queue"]["queue"])
        assert report.render(figures).startswith("<!doctype html>")
