"""Old days leave the tables, and what is still open goes on exactly. No Java."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from pyarrow import dataset

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.events import Event
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.expiry import Expired, expire, first_kept
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.losses import EXPIRED, noted
from celery_redis_plus.spark.manifest import PARTIALS, TABLES, Manifest, files
from celery_redis_plus.spark.snapshot import Snapshot
from tests.support.event_streams import START_MS
from tests.support.stored_events import StoredEvents

DAY_US = 86_400_000_000
#: 2025-11-24 00:00:00 UTC.
START = START_MS * 1000 // DAY_US * DAY_US
FIRST = date(2025, 11, 24)


def message(number: int, start_us: int, *ends: tuple[str, int]) -> list[Event]:
    tag = f"{start_us // 1000:011x}{number:08x}.1"
    published = Event(event="published", ts=start_us, id=tag, task="x")
    return [published, *(Event(event=kind, ts=ts, id=tag, worker="w" if kind == "claimed" else None) for kind, ts in ends)]


@pytest.fixture
def stored(tmp_path):
    """Four days with two finished messages each; one of the first day waits for its eta on the fifth."""
    found = StoredEvents(tmp_path)
    for day in range(4):
        at = START + day * DAY_US + 1000
        done = [message(day * 10 + n, at + n, ("claimed", at + 5000), ("acked", at + 6000)) for n in range(2)]
        found.add({"celery": [event for events in done for event in events]})
    found.add({"celery": message(99, START + 500)})
    fold(tmp_path)
    return found


def rows(root, table, columns):
    return dataset.dataset(files(root, table)).to_table(columns=columns).to_pylist()


def test_old_days_go_and_open_messages_stay_with_their_events(stored, tmp_path):
    assert expire(tmp_path, FIRST + timedelta(days=2)) == Expired(days=2 * 5, events=12)
    manifest = Manifest.read(tmp_path)
    assert sorted(manifest.events) == ["2025-11-24", "2025-11-26", "2025-11-27"]
    for table in (*TABLES, PARTIALS):
        assert sorted(manifest.tables[table]) == ["2025-11-26", "2025-11-27"], table
    assert [row["event"] for row in rows(tmp_path, "events", ["event", "date"]) if row["date"] == FIRST] == ["published"]
    assert [loss for loss in noted(tmp_path, manifest) if loss.why == EXPIRED and loss.count == 12]
    assert expire(tmp_path, FIRST + timedelta(days=2)) == Expired(0, 0), "nothing is left to expire"

    late = START + 4 * DAY_US
    tag = f"{(START + 500) // 1000:011x}{99:08x}.1"
    stored.add({"celery": [Event(event="claimed", ts=late, id=tag, worker="w"), Event(event="acked", ts=late + 10, id=tag)]})
    fold(tmp_path)
    (found,) = [row for row in rows(tmp_path, "messages", ["id", "state", "complete", "wait_s"]) if row["id"] == tag]
    assert (found["state"], found["complete"]) == ("COMPLETED", True)
    assert found["wait_s"] == pytest.approx((late - START - 500) / 1e6)
    backlogs = {row["minute"]: row["backlog"] for row in rows(tmp_path, "queues", ["minute", "backlog"])}
    assert [backlogs[minute] for minute in sorted(backlogs)] == [1, 1, 0]

    assert expire(tmp_path, FIRST + timedelta(days=2)).events == 3, "it is finished now"


def test_a_task_that_fails_after_its_events_expired_keeps_its_row(stored, tmp_path):
    """It was acked early, and ran over midnight."""
    tag = f"{(START + 700) // 1000:011x}{77:08x}.1"
    published = Event(event="published", ts=START + 700, id=tag, task="night", priority=3, body_size=10)
    claimed = Event(event="claimed", ts=START + 1700, id=tag, worker="w2")
    stored.add({"celery": [published, claimed, Event(event="acked", ts=START + 1800, id=tag, reason="early")]})
    fold(tmp_path)
    (before,) = [row for row in rows(tmp_path, "messages", None) if row["id"] == tag]
    expire(tmp_path, FIRST + timedelta(days=2), kinds=["events"])
    late = START + 2 * DAY_US
    stored.add({"celery": [Event(event="failed", ts=late, id=tag, reason="failure", error="ValueError: x")]})
    fold(tmp_path)
    (after,) = [row for row in rows(tmp_path, "messages", None) if row["id"] == tag]
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"state", "last_event", "reason", "error", "events", "last_at", "finished_at", "total_s"}
    assert (after["state"], after["error"], after["events"], after["total_s"]) == (
        "FAILED", "ValueError: x", 4, pytest.approx((late - START - 700) / 1e6),
    )  # fmt: skip
    assert [found for found in check(tmp_path) if found.wrong] == []


def test_each_kind_expires_alone(stored, tmp_path):
    before = Manifest.read(tmp_path)
    assert expire(tmp_path, FIRST + timedelta(days=1), kinds=["messages"]) == Expired(days=1, events=0)
    after = Manifest.read(tmp_path)
    assert after.events == before.events
    assert "2025-11-24" not in after.tables["messages"]
    assert after.tables["queues"] == before.tables["queues"]
    assert len(rows(tmp_path, "messages", ["id"])) == 7, "six finished ones, and the one that waits"
    with pytest.raises(InvalidArgument, match="events, messages, minutes"):
        expire(tmp_path, FIRST, kinds=["x"])


def test_what_waits_stays_where_all_else_has_expired(stored, tmp_path):
    """There were no tables then, and the next aggregation made the minutes anew that had expired."""
    expire(tmp_path, FIRST + timedelta(days=30))
    (found,) = rows(tmp_path, "messages", ["state"])
    assert found["state"] == "PENDING"
    assert Snapshot(tmp_path).dataset("queues") is None
    assert fold(tmp_path).events == 0
    assert Manifest.read(tmp_path).tables["queues"] == {}


def test_tables_can_be_made_anew_of_what_is_left(stored, tmp_path):
    expire(tmp_path, FIRST + timedelta(days=2))
    fold(tmp_path, rebuild=True)
    assert len(rows(tmp_path, "messages", ["id"])) == 5
    assert max(row["backlog"] for row in rows(tmp_path, "queues", ["backlog"])) <= 2


def test_the_days_that_are_kept_are_counted_with_today():
    today = datetime.now(UTC).date()
    assert first_kept(1) in {today, today + timedelta(days=1)}
    assert (today - first_kept(90)).days in {88, 89}
