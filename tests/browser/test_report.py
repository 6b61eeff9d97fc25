"""The pipeline's report in a real browser: every period, many queues, a phone and a dark screen can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="needs the extra `spark`")

from celery_redis_plus.spark import report
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.summaries import Period, summaries
from tests.browser.test_web_page import MAX_PICTURE_BYTES, PHONE
from tests.docs.blocks import ROOT
from tests.support.event_streams import START_MS, lives
from tests.support.stored_events import StoredEvents

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS


def spread(count, over_ms, *, after_ms=0, seed=1):
    """Return the events of messages that are published evenly over a time."""
    return lives(count, seed=seed, start_ms=START_MS + after_ms, spacing_us=over_ms * 1000 // count)


def a_day_with_a_gap():
    before, after = spread(8000, 9 * HOUR_MS), spread(4000, 10 * HOUR_MS, after_ms=14 * HOUR_MS, seed=2)
    return {"celery": before + after, "mail": spread(2000, 8 * HOUR_MS, seed=3)}


PERIODS = {
    "a minute": lambda: {"celery": spread(600, MINUTE_MS)},
    "a day with a gap of five hours": a_day_with_a_gap,
    "90 days": lambda: {"celery": spread(4000, 90 * DAY_MS)},
    "100 queues": lambda: {
        f"queue-{number:03}": spread(30, HOUR_MS, after_ms=1200 * number, seed=number) for number in range(100)
    },
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the URL of the report of a period, made once."""
    made = {}

    def url(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("report")
            StoredEvents(folder / "tables").add(PERIODS[name]())
            fold(folder / "tables")
            figures = summaries(Snapshot(folder / "tables"), period=Period())
            path = folder / "report.html"
            path.write_text(report.render(figures, note=f"Everything of {name}."), encoding="utf-8")
            made[name] = path.as_uri()
        return made[name]

    return url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, PHONE])
@pytest.mark.parametrize("period", PERIODS)
def test_it_can_be_read(browser, page, period, width, scheme):
    browser.open("about:blank")
    browser.complaints()
    browser.look(scheme=scheme, width=width, height=900)
    browser.open(page(period))
    assert browser.complaints() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width, "only charts and tables scroll to the side"
    assert browser.run("return document.querySelectorAll('svg').length") == 4
    # Text of a chart, on the screen: 3 px is what a phone had.
    heights = "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height)"
    sizes = browser.run(f"return {heights}.filter(size => size > 0)")
    assert min(sizes) > 7, sizes
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 24, 31)" if scheme == "dark" else "rgba(0, 0, 0, 0)"
    )
    labels = browser.run("return [...document.querySelectorAll('svg')].map(chart => chart.getAttribute('aria-label') || '')")
    assert all(labels), "for those who do not see it"


def test_many_queues_have_as_many_lines_as_can_be_told_apart(browser, page):
    browser.look(width=1200, height=900)
    browser.open(page("100 queues"))
    texts = "[...chart.querySelectorAll('text')].map(text => text.textContent)"
    charts = browser.run(f"return [...document.querySelectorAll('svg')].map(chart => {texts})")
    lines = [len({text for text in shown if text.startswith("queue-")}) for shown in charts]
    assert 0 < max(lines) <= report.MAX_LINES, lines
    rows = browser.run("return [...document.querySelectorAll('td')].filter(cell => cell.textContent.startsWith('queue-')).length")
    assert rows >= 100, "the table has all of them"


@pytest.mark.parametrize(
    ("name", "period", "scheme", "width", "height"),
    [
        ("report-day", "a day with a gap of five hours", "light", 1200, 900),
        ("report-phone", "90 days", "light", PHONE, 760),
        ("report-dark", "100 queues", "dark", 1200, 760),
    ],
)
def test_its_pictures(browser, page, request, tmp_path, name, period, scheme, width, height):  # noqa: PLR0917 - cases and fixtures
    folder: Path = ROOT / "docs" if request.config.getoption("--write-screenshots") else tmp_path
    browser.look(scheme=scheme, width=width, height=height)
    browser.open(page(period))
    picture = browser.screenshot()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < MAX_PICTURE_BYTES
    (folder / f"{name}.png").write_bytes(picture)
