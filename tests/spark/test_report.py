"""What the report draws is what happened: zeros where nothing did, a backlog until it is gone. No Java is needed."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pandas as pd
from matplotlib import pyplot as plt

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark import report
from celery_redis_plus.spark.timeline import Timeline

START = pd.Timestamp("2026-01-31 10:00")
COUNTS = ("published", "delivered", "acked", "failed", "retried", "dead")


def figures(minutes, *, backlog=(), waits=(), end=None, by_queue=("celery",)):
    """The figures of a report: `minutes` are (minute, messages), `backlog` and `waits` (queue, minute, value)."""
    throughput = pd.DataFrame({"minute": [START + pd.Timedelta(minutes=minute) for minute, _ in minutes]})
    for name in COUNTS:
        throughput[name] = [count for _, count in minutes]
    last = end if end is not None else max(minute for minute, _ in minutes) + 1

    def rows(column, values):
        found = pd.DataFrame(values, columns=["queue", "minute", column])
        found["minute"] = START + pd.to_timedelta(found["minute"], unit="min")
        return found

    empty = pd.DataFrame({"queue": [], "count": []})
    return {
        "period": pd.DataFrame({"start": [START], "end": [START + pd.Timedelta(minutes=last)]}),
        "throughput": throughput,
        "backlog": rows("backlog", backlog),
        "waits": rows("wait_p95_s", waits),
        "by_queue": pd.DataFrame({"queue": list(by_queue)}),
        "by_task": pd.DataFrame(
            {"task": ["t"], **{f"{name}_{label}_s": [0.1] for name in ("wait", "run") for label in ("p50", "p95")}}
        ),
        "states": pd.DataFrame({"state": ["COMPLETED"], "count": [1200]}),
        "incomplete": empty,
        "losses": pd.DataFrame({"why": ["trimmed"], "count": [7]}),
        "headline": pd.DataFrame(
            {"period": ["this period", "other period"], "published": [1200, 600], "wait_p95_s": [0.25, float("nan")]}
        ),
    }


@pytest.fixture
def draw():
    """Draw a chart: `draw("Throughput", figures)`; return its lines by label, as series."""
    made = []

    def run(name, of):
        figure, axes = plt.subplots()
        made.append(figure)
        report.CHARTS[name](axes, of)
        assert all(line.get_drawstyle() == "steps-post" for line in axes.get_lines())
        return {
            line.get_label(): pd.Series(line.get_ydata(), index=pd.DatetimeIndex(line.get_xdata())) for line in axes.get_lines()
        }

    yield run
    for figure in made:
        plt.close(figure)


def test_a_gap_is_drawn_as_zeros(draw):
    lines = draw("Throughput", figures([(0, 600), (1, 600), (310, 600)]))
    published = lines["published"]
    assert len(published) == 312
    assert published.sum() == 1800 + 600, "the last step has a width"
    assert published.iloc[2:310].eq(0).all()


def test_long_periods_are_drawn_by_the_hour_and_keep_their_sums(draw):
    minutes = [(minute, 1) for minute in range(0, 3 * 24 * 60, 7)]
    lines = draw("Throughput", figures(minutes))
    assert len(lines["published"]) == 3 * 24 + 1
    assert lines["published"].iloc[:-1].sum() == len(minutes)


@pytest.mark.parametrize("minutes", [1, 2, 24 * 60, 24 * 60 + 1, 31 * 24 * 60, 90 * 24 * 60])
def test_every_length_of_a_period_has_steps(draw, minutes):
    of = figures([(0, 5)], end=minutes, waits=[("celery", 0, 0.5)], backlog=[("celery", 0, 3)])
    timeline = Timeline.of(of)
    assert timeline.unit == ("minute" if minutes <= 24 * 60 else "hour" if minutes <= 31 * 24 * 60 else "day")
    for name in ("Throughput", "Backlog", "Wait for a delivery"):
        assert all(2 <= len(line) <= 24 * 90 + 2 for line in draw(name, of).values())


def test_a_backlog_stays_until_it_is_worked_off_also_beyond_the_last_event_of_its_queue(draw):
    """It ended with the last event: the queue without workers, for which one opens the page, could not be seen."""
    of = figures([(0, 1), (60, 1)], backlog=[("stuck", -30, 40), ("celery", 0, 5), ("celery", 10, 0)])
    lines = draw("Backlog", of)
    assert list(lines) == ["stuck", "celery"]
    assert lines["stuck"].eq(40).all()
    assert lines["stuck"].index[-1] == START + pd.Timedelta(minutes=61)
    assert lines["celery"].iloc[:10].eq(5).all()
    assert lines["celery"].iloc[10:].eq(0).all()


def test_a_wait_is_no_zero_where_nothing_was_delivered(draw):
    lines = draw("Wait for a delivery", figures([(0, 1), (5, 1)], waits=[("celery", 0, 2.0), ("celery", 5, 1.0)]))
    assert lines["celery"].isna().sum() == 4
    assert lines["celery"].max() == 2.0


def test_a_hundred_queues_are_eight_lines_and_the_others(draw):
    backlog = [(f"tenant{number}", 0, number) for number in range(100)]
    lines = draw("Backlog", figures([(0, 1), (1, 1)], backlog=backlog))
    assert list(lines) == [f"tenant{number}" for number in range(99, 91, -1)] + ["92 others"]
    assert lines["92 others"].iloc[0] == sum(range(92))


def test_long_names_leave_room_for_the_chart():
    name = f"{'shop.' * 40}pay"
    of = figures([(0, 1), (1, 1)], backlog=[(name, 0, 1)])
    of["by_task"]["task"] = name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = report.render(of)
    assert f"{'shop.' * 40}"[:19] + "…" in page


@pytest.mark.parametrize(("name", "shown"), [("_own", "_own"), ("a$\\frac{$", "a$\\frac{$"), ("a\x00\x1b[m", "a\\x00\\x1b[m")])
def test_odd_names_are_shown_as_they_are(name, shown):
    of = figures([(0, 1), (1, 1)], backlog=[(name, 0, 1)])
    of["by_task"]["task"] = name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = report.render(of)
    backlog, _, others = page.partition("Chart: Backlog")[2].partition("Chart: Wait for a delivery")
    assert shown in backlog
    assert "nothing in this period" not in backlog
    assert shown in others.partition("Chart: Wait and run by task")[2]


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"x\.foo.*\.png"):
        report.draw(figures([(0, 1)]), tmp_path / "x.foo")


def test_a_report_of_nothing_says_so():
    of = figures([(0, 1)])
    of["period"] = pd.DataFrame({"start": [pd.NaT], "end": [pd.NaT]})
    assert report.render(of).count("nothing in this period") == 3


def test_the_page_begins_with_figures_and_names_the_zone():
    page = report.render(figures([(0, 600)]), note="Period x.")
    head = page.partition("<svg")[0]
    assert "7 events were trimmed before they were read" in head
    assert "<dt>published</dt><dd>1,200<small>600 before</small></dd>" in head
    assert "<dt>wait p95</dt><dd>0.25 s<small>- before</small></dd>" in head
    assert "<dt>lost events</dt><dd>7</dd>" in head
    assert page.count("time (UTC)") == 3
    assert page.count('<svg role="img" aria-label="Chart: ') == 4
    assert 'name="viewport"' in page
    assert "prefers-color-scheme:dark" in page


def test_a_task_links_to_its_failures():
    of = figures([(0, 600)])
    rows = {"task": ["t", "<u>", "t"], "state": ["FAILED", "DEAD", "DEAD"], "reason": ["x", "y", "z"], "count": [3, 2, 1]}
    of["failures"] = pd.DataFrame(rows)
    of["by_task"] = pd.concat([of["by_task"], of["by_task"].assign(task="well"), of["by_task"].assign(task="<u>")])
    page = report.render(of)
    assert page.count('<a href="#failures-0">t</a>') == page.count('<tr id="failures-0"><td>t</td><td>FAILED</td>') == 1
    assert page.count('<a href="#failures-1">&lt;u&gt;</a>') == page.count('<tr id="failures-1"><td>&lt;u&gt;</td>') == 1
    assert "<td>well</td>" in page
