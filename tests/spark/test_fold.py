"""The tables equal a plain-Python model after each aggregation, however the events came; and cost follows the news. No Java."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from pyarrow import Table, dataset, parquet

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.events import Event
from celery_redis_plus.spark import checks, layers, leftovers, open_messages
from celery_redis_plus.spark import fold as fold_module
from celery_redis_plus.spark import manifest as manifest_module
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.expiry import expire
from celery_redis_plus.spark.fold import fold, new_event_count
from celery_redis_plus.spark.folder import write_file
from celery_redis_plus.spark.layers import LAYOUTS
from celery_redis_plus.spark.losses import SUPPLIED, Loss
from celery_redis_plus.spark.manifest import MIXED, OPEN, TABLES, UNFINISHED, Manifest, files
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.snapshot import Snapshot
from tests.spark.model import aggregate_in_python, moment
from tests.support.event_streams import START_MS, lives
from tests.support.stored_events import StoredEvents

#: Begins ten minutes before midnight UTC, so that messages live on two days.
LATE_MS = START_MS + (8 * 3600 - 600) * 1000
LIVES = lives(1200, start_ms=LATE_MS, spacing_us=700_000)
KEYS = {"messages": ("queue", "id"), "queues": ("queue", "minute"), "tasks": ("task", "minute"), "workers": ("worker", "minute")}
DAY_US = 86_400_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tables"


@pytest.fixture
def stored(root: Path) -> StoredEvents:
    return StoredEvents(root)


@pytest.fixture
def there_are_many_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open messages are dealt with as where there are many."""
    monkeypatch.setattr(open_messages, "FEW_EVENTS", -1)
    monkeypatch.setattr(open_messages, "MOST_NEW_EVENTS", 100)
    for table in (OPEN, UNFINISHED):
        monkeypatch.setitem(LAYOUTS, table, replace(LAYOUTS[table], rows=40))


@pytest.fixture(params=["few", "many"])
def few_or_many(request: pytest.FixtureRequest) -> None:
    if request.param == "many":
        request.getfixturevalue("there_are_many_open")


def rows_of(root: Path, table: str) -> dict[tuple[object, ...], dict[str, object]]:
    rows = dataset.dataset(files(root, table)).to_table().to_pylist()
    found = {tuple(row[name] for name in KEYS[table]): row for row in rows}
    assert len(found) == len(rows), f"{table} has a row twice"
    return found


def check(root: Path, events_by_queue: dict[str, list[Event]]) -> None:
    """Compare every table with the model, exactly."""
    for table, wanted in aggregate_in_python(events_by_queue).items():
        found = rows_of(root, table)
        assert found.keys() == wanted.keys()
        for key, row in wanted.items():
            for name, value in row.items():
                got = found[key][name]
                assert got == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), (table, key, name)


def one(event: str, ts: int, tag: str, **values: object) -> Event:
    return Event(event=event, ts=ts, id=tag, **values)  # type: ignore[arg-type]


def tag_of(start_us: int, number: int) -> str:
    return f"{start_us // 1000:011x}{number:08x}.1"


@pytest.mark.parametrize("seed", range(2))
def test_tables_equal_the_model_after_each_portion(stored, root, few_or_many, seed):
    """Queues are read at their own pace: the second one lags, so that it changes minutes that are long over."""
    source = random.Random(seed)
    mail = LIVES[: len(LIVES) // 2]
    done = {"celery": 0, "mail": 0}
    while done["celery"] < len(LIVES) or done["mail"] < len(mail):
        for _ in range(source.randrange(1, 4)):
            step = {"celery": source.randrange(1, 900), "mail": source.randrange(0, 300)}
            rows = {
                queue: all_of[done[queue] : done[queue] + step[queue]] for queue, all_of in (("celery", LIVES), ("mail", mail))
            }
            if any(rows.values()):
                stored.add(rows)
            done = {queue: done[queue] + len(rows[queue]) for queue in rows}
        fold(root)
        check(root, {queue: all_of[: done[queue]] for queue, all_of in (("celery", LIVES), ("mail", mail)) if done[queue]})
        if source.random() < 0.3:
            compact(root)
            check(root, {queue: all_of[: done[queue]] for queue, all_of in (("celery", LIVES), ("mail", mail)) if done[queue]})
    version = Manifest.read(root).version
    assert fold(root).version == version, "nothing new: nothing is done"

    fold(root, rebuild=True)
    check(root, {"celery": LIVES, "mail": mail})


def test_messages_that_were_gone_and_have_new_events_are_traced_as_one(stored, root, few_or_many):
    """A task that fails long after an early ack, and a server that went back to an older state."""
    tags = [tag_of(START_MS * 1000 + number * 1000, number) for number in range(300)]
    events = []
    for number, tag in enumerate(tags):
        ts = START_MS * 1000 + number * 1000
        events += [one("published", ts, tag, task="x"), one("claimed", ts + 10, tag, worker="w")]
        events.append(one("acked", ts + 20, tag, reason="early" if number % 2 else None))
    stored.add({"celery": events})
    fold(root)
    later = [one("published", START_MS * 1000 + 600_000_000, tag_of(START_MS * 1000 + 600_000_000, 999), task="y")]
    stored.add({"celery": later})
    fold(root)
    assert Manifest.read(root).tables[OPEN], "the last message is open"

    again = [one("failed", START_MS * 1000 + 700_000_000, tags[7], reason="failure", error="ValueError: x")]
    again.append(one("failed", START_MS * 1000 + 700_000_000, tags[9], reason="retry"))
    again += [
        one("claimed", START_MS * 1000 + 700_000_001, tags[8], worker="w"),
        one("acked", START_MS * 1000 + 700_000_002, tags[8]),
    ]
    stored.add({"celery": again})
    done = fold(root)

    check(root, {"celery": events + later + again})
    states = [rows_of(root, "messages")["celery", tags[number]]["state"] for number in (7, 9)]
    assert states == ["FAILED", "RETRIED"]
    assert (done.messages, done.events) == (3, 4)


def test_events_that_an_archive_supplies_count_as_if_they_had_come_in_time(stored, root, few_or_many):
    """Of a message that was gone by then, the begin was missing, or the middle."""
    size = len(LIVES) // 4 + 1
    parts = [LIVES[begin : begin + size] for begin in range(0, len(LIVES), size)]
    there: set[int] = set()
    for number in (1, 3, 2, 0):
        supplied = Loss("celery", SUPPLIED, START_MS, number * size + 1, number * size + size, size, None, None, 0)
        stored.last["celery"] = number * size
        stored.add({"celery": parts[number]}, [supplied] if number in {0, 2} else [])
        fold(root)
        there.add(number)
        check(root, {"celery": [event for place in sorted(there) for event in parts[place]]})


def test_a_fold_reads_the_news_and_the_open_messages_of_their_days_only(stored, root, monkeypatch):
    """Nine new events read 1.8 million: whole days, and those of all messages with long etas."""
    number = 0

    def message(start_us: int, eta_us: int | None = None) -> list[Event]:
        nonlocal number
        number += 1
        tag = tag_of(start_us, number)
        claimed = eta_us or start_us + 1000
        return [
            one("published", start_us, tag, task="x"),
            one("claimed", claimed, tag, worker="w"),
            one("acked", claimed + 5000, tag),
        ]

    start = START_MS * 1000 // DAY_US * DAY_US
    for day in range(6):
        first = start + day * DAY_US
        rows = [event for place in range(2000) for event in message(first + place * 40_000_000)]
        rows += [event for days in range(1, 6 - day) for event in message(first + days, first + days * DAY_US)]
        stored.add({"celery": rows})
    fold(root)
    before = {table: set(files(root, table)) for table in TABLES}

    read = []
    tracer = fold_module.trace_here

    def counted(inputs, place):
        read.append(sum(parquet.read_metadata(root / file).num_rows for files in inputs.values() for file in files))
        return tracer(inputs, place)

    stored.add({"celery": [event for place in range(3) for event in message(start + 6 * DAY_US - 30_000_000 + place)]})
    done = fold(root, counted)

    assert (read, done.messages, done.events) == ([9], 3, 9)
    for table in TABLES:
        added = set(files(root, table)) - before[table]
        assert len(added) == 1, table
        rows = parquet.read_metadata(added.pop()).num_rows
        assert rows <= (3 if table == "messages" else 1700), (table, rows)


def test_news_of_many_days_are_a_few_files_and_come_to_their_days_when_they_are_many(stored, root, monkeypatch):
    """An aggregation wrote a file for each of the days of publishing that its news touched, however few they were."""
    start = START_MS * 1000 // DAY_US * DAY_US
    day_of = [start + day * DAY_US for day in range(20)]
    made = [one("published", at + n, tag_of(at + n * 1000, n), task="x") for at in day_of for n in range(40)]
    stored.add({"celery": made})
    fold(root)
    now, counts = start + 20 * DAY_US, []
    for first in range(0, 40, 4):
        if first == 32:
            monkeypatch.setattr(layers, "MOST_MIXED", 500)
        ended = [event for place, event in enumerate(made) if first <= place % 40 < first + 4 and event.event == "published"]
        # Of each fourth one, the task was acked early, and goes on.
        news = []
        for number, event in enumerate(ended):
            news.append(one("claimed", now + number, event.id, worker="w"))
            news.append(one("acked", now + number + 1, event.id, reason=None if number % 4 else "early"))
        stored.add({"celery": news})
        done = fold(root)
        assert (done.events, done.messages, len(done.dates)) == (160, 80, 20)
        made += news
        check(root, {"celery": made})
        dated = Manifest.read(root)
        counts.append({table: {*dates} for table, dates in (("events", dated.events), *dated.tables.items()) if table in KEYS})
        now += DAY_US
    days = {np.datetime64(at, "us").astype(str)[:10] for at in day_of}
    assert {frozenset(found["messages"]) for found in counts[:8]} == {frozenset({MIXED})}
    assert counts[-1]["messages"] - {MIXED} == days

    # DuckDB makes a column of `day=` in the names of all files: it would miss what days share.
    duckdb = pytest.importorskip("duckdb")
    assert "day" not in duckdb.read_parquet(files(root, "events")).columns

    # A message that is over, and whose row shares a file, has another event.
    late = [
        one("failed", now + number, event.id, reason="failure") for number, event in enumerate(made) if event.reason == "early"
    ]
    stored.add({"celery": late})
    fold(root)
    check(root, {"celery": made + late})
    # With a part of the events in memory, too.
    assert {MIXED, *days} <= {*Manifest.read(root).events}
    monkeypatch.setattr(fold_module, "EVENTS_IN_MEMORY", 100)
    fold(root, rebuild=True)
    check(root, {"celery": made + late})
    assert not [found for found in checks.check(root) if found.wrong]
    compact(root)
    manifest = Manifest.read(root)
    assert {len(names) for dates in (*manifest.tables.values(), manifest.events) for names in dates.values()} == {1}
    assert not {MIXED} & {*manifest.events, *manifest.tables["messages"]}
    check(root, {"celery": made + late})
    fold(root, rebuild=True)
    check(root, {"celery": made + late})


def test_a_compaction_divides_what_days_share_though_the_files_stay_as_many(stored, root):
    start = START_MS * 1000 // DAY_US * DAY_US
    made, now = [], start + 40 * DAY_US
    for turn in range(2):
        news = []
        for at in (start + day * DAY_US + turn * 1_000_000 + number for day in range(5) for number in range(2)):
            tag = tag_of(at, len(made) + len(news))
            news += [
                one("published", at, tag, task="x"),
                one("claimed", now + turn, tag, worker="w"),
                one("acked", now + turn + 1, tag),
            ]
        stored.add({"celery": news})
        fold(root)
        made += news
    before, after = compact(root)
    assert before == after
    manifest = Manifest.read(root)
    assert not {MIXED} & {*manifest.events, *manifest.tables["messages"]}
    check(root, {"celery": made})
    assert compact(root) == (0, 0)


def test_an_expiry_of_other_days_leaves_alone_what_days_share(stored, root):
    start = START_MS * 1000 // DAY_US * DAY_US
    made = [one("published", start + day * DAY_US, tag_of(start + day * DAY_US, day), task="x") for day in range(4)]
    stored.add({"celery": made})
    fold(root)
    before = {*root.rglob("*.parquet")}
    assert expire(root, date(2020, 1, 1)).days == 0
    assert {*root.rglob("*.parquet")} <= before


def test_a_fold_beside_a_large_backlog_leaves_it_alone(stored, root, there_are_many_open, monkeypatch):
    """Each aggregation traced and wrote a backlog of a million messages anew, of which three thousand had new events."""
    start = START_MS * 1000
    waiting = [one("published", start + n, tag_of(start + n * 1000, n), task="x") for n in range(4000)]
    stored.add({"celery": waiting})
    fold(root)
    read = []
    tracer = fold_module.trace_here

    def counted(inputs, place):
        read.append(sum(parquet.read_metadata(root / file).num_rows for files in inputs.values() for file in files))
        return tracer(inputs, place)

    claims = [one("claimed", start + 70_000_000 + n, waiting[n].id, worker="w") for n in range(3)]
    # Acked before its work began, a minute before the next event: it is over, although nothing else happens to it.
    early = [one("claimed", start + 100_000, waiting[9].id, worker="w")]
    early.append(one("acked", start + 100_001, waiting[9].id, reason="early"))
    manifests = []
    for news in (early, claims):
        stored.add({"celery": news})
        assert fold(root, counted).events == len(news)
        manifests.append(Manifest.read(root))

    assert read == [3, 3 + 3 + 3]
    for table in (OPEN, UNFINISHED):
        before, after = (set(manifest.tables[table][open_messages.READY]) for manifest in manifests)
        assert len(before) >= 100
        assert len(before - after) <= 2, table
    assert waiting[9].id not in {row["id"] for row in dataset.dataset(root_files(root, OPEN)).to_table().to_pylist()}
    check(root, {"celery": waiting + early + claims})


def waiting(number: int, start_us: int, delay_ms: int, end: str = "") -> list[Event]:
    """Return the life of a message with an eta; `end` is what ends it an hour before that."""
    tag, due = tag_of(start_us, number), start_us + delay_ms * 1000
    events = [one("published", start_us, tag, task="x"), one("delayed", start_us, tag, delay=delay_ms)]
    if end:
        return [*events, one(end, due - 3_600_000_000, tag)]
    last = one("retried", due + 9, tag, reason="failure", delay=2 * DAY_US // 1000)
    if number % 7 == 0:
        # It fails, and is tried again two days later.
        events += [one("promoted", due, tag), one("claimed", due + 5, tag, worker="w"), last]
        due += 2 * DAY_US + 9
    return [*events, one("promoted", due, tag), one("claimed", due + 5, tag, worker="w"), one("acked", due + 9, tag)]


def test_a_countdown_tells_when_a_message_was_due(stored, root):
    start = START_MS * 1000
    counted_down, at_once = waiting(1, start, 60_000), [one("published", start, tag_of(start, 2), task="x")]
    failed = [*at_once, one("claimed", start + 5, at_once[0].id), one("requeued", start + 9, at_once[0].id, delay=1000)]
    stored.add({"celery": counted_down + failed})
    fold(root)

    rows = rows_of(root, "messages")
    assert rows["celery", counted_down[0].id]["eta"] == moment(start + 60_000_000)
    assert rows["celery", counted_down[0].id]["late_s"] == pytest.approx(5e-6)
    assert rows["celery", at_once[0].id]["eta"] is None


def test_a_message_that_got_another_time_is_due_then(stored, root):
    """A new time after the first delivery is that of another one."""
    start = START_MS * 1000
    sooner, now, late = (waiting(number, start, 60_000) for number in range(3))
    sooner.insert(2, one("delayed", start + 9, sooner[0].id, delay=59_000, reason="rescheduled"))
    now[2] = replace(now[2], ts=start + 1_000_000, reason="rescheduled")
    again = one("delayed", start + 60_000_006, late[0].id, delay=9_000, reason="rescheduled")
    late[4:] = [one("requeued", start + 60_000_006, late[0].id), again]
    stored.add({"celery": sooner + now + late})
    fold(root)

    rows = [rows_of(root, "messages")["celery", life[0].id] for life in (sooner, now, late)]
    assert [row["eta"] for row in rows] == [moment(start + us) for us in (59_000_009, 1_000_000, 60_000_000)]
    assert [row["late_s"] for row in rows] == pytest.approx([0.999996, 59.000005, 5e-6])


@pytest.mark.sample(2)
@pytest.mark.parametrize(("few_or_many", "most_new"), [("few", 20), ("many", -1), ("many", 10**6)], indirect=["few_or_many"])
def test_messages_that_wait_for_days_are_exact_whatever_happens_to_them(stored, root, few_or_many, monkeypatch, most_new):
    """They come due, are tried again days later, are cancelled long before, or wait for longer than a year."""
    monkeypatch.setattr(open_messages, "MOST_NEW_EVENTS", most_new)
    source, start, made = random.Random(most_new), START_MS * 1000, list[Event]()
    for number in range(250):
        delay_ms = source.choice((50, 20_000_000, *(86_400_000 * days for days in range(1, 20)), 86_400_000 * 400))
        end = source.choice(("cancelled", "purged")) if delay_ms > 20_000_000 and number % 5 == 0 else ""
        made += waiting(number, start + source.randrange(10 * DAY_US), delay_ms, end)
    made.sort(key=lambda event: event.ts)
    done, day = 0, 0
    while done < len(made):
        day += source.choice((1, 3, 4)) if day < 32 else 60
        until = next((place for place, event in enumerate(made) if event.ts >= start + day * DAY_US), len(made))
        if until == done:
            continue
        stored.add({"celery": made[done:until]})
        done = until
        assert fold(root).events
        check(root, {"celery": made[:done]})
        if source.random() < 0.2:
            compact(root)
    assert not Manifest.read(root).tables[OPEN]


def test_a_fold_leaves_messages_that_wait_for_later_days_alone(stored, root, monkeypatch):
    """The open messages of each day of publishing that the news touched were traced and written anew: 99,016 events for 9,928."""
    monkeypatch.setattr(open_messages, "MOST_NEW_EVENTS", 100)
    start = START_MS * 1000 // DAY_US * DAY_US + 3_600_000_000
    lives_of = [waiting(number, start + number, 86_400_000 * (1 + number % 20)) for number in range(2100) if number % 7]
    first = [event for life in lives_of for event in life[:2]]
    stored.add({"celery": first})
    fold(root)
    # The first was small; the second finds that there are many.
    stored.add({"celery": [one("published", start + 10**9, tag_of(start + 10**9, 9999), task="x")]})
    fold(root)
    before = Manifest.read(root)
    read, tracer = [], fold_module.trace_here

    def counted(inputs, place):
        read.append(sum(parquet.read_metadata(root / file).num_rows for files in inputs.values() for file in files))
        return tracer(inputs, place)

    due = sorted((event for life in lives_of for event in life[2:] if event.ts < start + 2 * DAY_US - 10**9), key=lambda e: e.ts)
    assert len(due) == 3 * 90
    stored.add({"celery": due})
    assert fold(root, counted).events == len(due)

    assert read == [len(due) + 90 * 2 + 1], "the news, what was due, and the message that is ready"
    after = Manifest.read(root)
    for table in (OPEN, UNFINISHED):
        later = {date: names for date, names in before.tables[table].items() if "2025-11-25" < date < "2026"}
        assert len(later) == 19
        assert {date: after.tables[table].get(date) for date in later} == later
    extra = [one("published", start + 10**9, tag_of(start + 10**9, 9999), task="x")]
    check(root, {"celery": first + extra + due})


def root_files(root: Path, table: str) -> list[str]:
    return [str(root / name) for names in Manifest.read(root).tables[table].values() for name in names]


def test_a_fold_takes_as_many_events_as_it_may_in_their_order(stored, root):
    for place in range(5):
        stored.add({"celery": LIVES[place * 100 : place * 100 + 100]})
    assert [fold(root, most=250).events for _ in range(4)] == [200, 200, 100, 0]
    check(root, {"celery": LIVES[:500]})


def test_open_messages_are_read_again_and_no_others(stored, root):
    waiting = [one("published", START_MS * 1000 + n, tag_of(START_MS * 1000, n), task="x") for n in range(5)]
    stored.add({"celery": waiting})
    fold(root)
    assert {row["state"] for row in rows_of(root, "messages").values()} == {"PENDING"}
    claims = [one("claimed", START_MS * 1000 + 70_000_000 + n, waiting[n].id, worker="w") for n in range(2)]
    stored.add({"celery": claims})
    assert fold(root).messages == 2
    check(root, {"celery": waiting + claims})


def test_files_and_manifest_do_not_grow_with_the_number_of_folds(stored, root, monkeypatch):
    monkeypatch.setattr(leftovers, "KEPT_S", 0.0)
    size = 0
    for place in range(30):
        stored.add({"celery": LIVES[place * 40 : place * 40 + 40]})
        fold(root)
        if place == 12:
            size = (root / "manifest.json").stat().st_size
    check(root, {"celery": LIVES[:1200]})
    manifest = Manifest.read(root)
    for table, dates in {**manifest.tables, "events": manifest.events}.items():
        for day, names in dates.items():
            assert len(names) <= 12, (table, day)
    assert (root / "manifest.json").stat().st_size < 2 * size
    fold(root)
    assert len(list(root.rglob("*.parquet"))) < 60
    assert len(list((root / "incoming").rglob("_committed.json"))) <= 1
    compact(root)
    manifest = Manifest.read(root)
    assert {len(names) for dates in (*manifest.tables.values(), manifest.events) for names in dates.values()} == {1}
    check(root, {"celery": LIVES[:1200]})


def test_files_stay_for_those_who_read_them(stored, root, monkeypatch):
    stored.add({"celery": LIVES[:500]})
    incoming = files(root, "events")
    fold(root)
    listed = {table: files(root, table) for table in (*TABLES, "events")}
    for place in range(30):
        stored.add({"celery": LIVES[500 + place * 30 : 530 + place * 30]})
        fold(root)
    compact(root)
    assert all(Path(file).exists() for names in (*listed.values(), incoming) for file in names)

    monkeypatch.setattr(leftovers, "KEPT_S", -1.0)
    stored.add({"celery": LIVES[:1]})
    fold(root)
    fold(root)
    assert not any(Path(file).exists() for file in incoming)


def test_files_stay_as_long_as_a_job_is_told(stored, root):
    stored.add({"celery": LIVES[:500]})
    fold(root)
    before = files(root, "queues")
    for more in (LIVES[500:600], LIVES[600:700], LIVES[700:800]):
        stored.add({"celery": more})
        fold(root)
    compact(root, kept_s=3600)
    assert all(Path(file).exists() for file in before)
    fold(root, kept_s=-1.0)
    assert not any(Path(file).exists() for file in before)
    check(root, {"celery": LIVES[:800]})


@pytest.mark.parametrize("point", ["write", "collect"])
def test_a_fold_that_died_leaves_the_tables_as_they_were(stored, root, monkeypatch, point):
    stored.add({"celery": LIVES[:1000]})
    fold(root)
    stored.add({"celery": LIVES[1000:]})

    def killed(*_arguments):
        raise RuntimeError("killed")

    monkeypatch.setattr(*((Manifest, "write") if point == "write" else (fold_module.losses, "collect")), killed)
    with pytest.raises(RuntimeError, match="killed"):
        fold(root)
    monkeypatch.undo()
    check(root, {"celery": LIVES[:1000]})
    fold(root)
    check(root, {"celery": LIVES})


def test_the_first_fold_does_not_look_like_a_manifest_that_is_lost(stored, root, monkeypatch):
    for place in range(0, 900, 60):
        stored.add({"celery": LIVES[place : place + 60]})
    collect, seen = fold_module.losses.collect, []

    def look(*arguments):
        assert list((root / "events").glob("v*/day=*")), "no file of events is written before the manifest"
        seen.append(Manifest.read(root))
        return collect(*arguments)

    monkeypatch.setattr(fold_module.losses, "collect", look)
    fold(root)
    assert [(manifest.version, manifest.events) for manifest in seen] == [(0, {})]


def test_a_job_that_was_killed_as_it_wrote_its_version_stops_no_other(stored, root, monkeypatch):
    monkeypatch.setattr(leftovers, "KEPT_S", -60.0)
    stored.add({"celery": LIVES[:500]})
    fold(root)
    left = [root / "versions" / name for name in (".00000002.json.4711", ".nfs0001", ".DS_Store")]
    for path in left:
        path.write_bytes(b'{"tables_ver')
    for place in range(500, len(LIVES), 500):
        stored.add({"celery": LIVES[place : place + 500]})
        fold(root)
    compact(root)
    check(root, {"celery": LIVES})
    assert [path.exists() for path in left] == [False, True, True], "only what is ours is removed"


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "a.json", b"{}")
    assert not list(tmp_path.iterdir())


def test_tables_of_an_older_release_are_made_anew_with_all_of_their_events(stored, root):
    stored.add({"celery": LIVES[:1000]})
    fold(root)
    stored.add({"celery": LIVES[1000:]})
    manifest = Manifest.read(root)
    (date, names), *_ = manifest.events.items()
    folder_of = root / "events" / "v00000001" / f"day={date}"
    folder_of.mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / name).rename(folder_of / Path(name).name)
    others = {other: f for other, f in manifest.events.items() if other != date}
    for other, f in others.items():
        target = root / "events" / "v00000001" / f"day={other}"
        target.mkdir(parents=True, exist_ok=True)
        for name in f:
            (root / name).rename(target / Path(name).name)
    old = {
        "tables_version": 2,
        "version": 7,
        "events": {d: f"events/v00000001/day={d}" for d in manifest.events},
        "absorbed": ["run/00000000"],
        "aggregated": {},
        "days": {},
        "tables": {},
        "losses": "",
        "counted": [],
    }
    (root / "manifest.json").write_text(json.dumps(old), encoding="utf-8")

    fold(root)

    check(root, {"celery": LIVES})


def as_of(root: Path, version: int) -> str:
    """Let the tables be of a version whose manifests have the same fields. Return the manifest."""
    for path in (root / "manifest.json", *(root / "versions").iterdir()):
        found = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**found, "tables_version": version}), encoding="utf-8")
    return (root / "manifest.json").read_text(encoding="utf-8")


def test_an_upgrade_makes_the_tables_anew_and_keeps_the_older_ones_for_their_readers(stored, root, monkeypatch):
    stored.add({"celery": LIVES[:1000]})
    fold(root)
    stored.add({"celery": LIVES[1000:2000]})
    text = as_of(root, 3)
    before = Manifest(**{name: value for name, value in json.loads(text).items() if name != "tables_version"})
    with pytest.raises(TablesUnusable, match=r"older release.*aggregate"):
        expire(root, date(2026, 1, 1))

    with monkeypatch.context() as killed:
        killed.setattr(Manifest, "write", lambda self, root: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            fold(root)
    assert (root / "manifest.json").read_text(encoding="utf-8") == text
    assert [file for file in before.referenced() if not (root / file).exists()] == []
    fold(root)
    check(root, {"celery": LIVES[:2000]})
    assert [file for file in before.referenced() if not (root / file).exists()] == []
    assert new_event_count(opened(root)) == 0

    stored.add({"celery": LIVES[2000:]})
    fold(root, kept_s=0)
    check(root, {"celery": LIVES})
    assert [file for file in before.tables["messages"].popitem()[1] if (root / file).exists()] == []


def test_tables_of_an_older_version_with_the_same_columns_stay(stored, root):
    """Rebuilt, they would lack what has expired among the events."""

    def ids():
        return set(dataset.dataset(files(root, "messages")).to_table(columns=["id"]).column("id").to_pylist())

    stored.add({"celery": LIVES[:1000]})
    fold(root)
    expire(root, date(2100, 1, 1), kinds=["events"])
    as_of(root, 7)
    before = ids()
    stored.add({"celery": LIVES[1000:]})
    fold(root)
    assert before
    assert before <= ids()


def test_a_downgrade_is_refused_and_changes_nothing(stored, root, monkeypatch):
    stored.add({"celery": LIVES[:1000]})
    fold(root)
    stored.add({"celery": LIVES[1000:]})
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*.*")}
    refusal = rf"version {manifest_module.TABLES_VERSION}; this release has 3\. Upgrade"
    with monkeypatch.context() as older:
        older.setattr(manifest_module, "TABLES_VERSION", 3)
        for job in (fold, compact, Snapshot, lambda root: files(root, "messages")):
            with pytest.raises(TablesUnusable, match=refusal):
                job(root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*.*")} == before
    fold(root)
    check(root, {"celery": LIVES})


def test_a_rebuild_of_many_events_has_some_in_memory_at_a_time(stored, root, monkeypatch):
    stored.add({"celery": LIVES, "mail": LIVES[:500]})
    fold(root)
    traced = []

    def noted(events: Table, place: fold_module.Place) -> Iterator[fold_module.Written]:
        traced.append(events.num_rows)
        return trace(events, place)

    trace = fold_module.trace
    monkeypatch.setattr(fold_module, "trace", noted)
    monkeypatch.setattr(fold_module, "EVENTS_IN_MEMORY", 1000)
    fold(root, rebuild=True)
    check(root, {"celery": LIVES, "mail": LIVES[:500]})
    assert sum(traced) == len(LIVES) + 500
    assert max(traced) < 1500


def test_no_time_is_negative_where_the_clock_of_a_server_went_back(root, stored):
    tag = f"{START_MS:011x}{1:08x}.1"
    back = START_MS * 1000 - 3_600_000_000
    times = {"published": START_MS * 1000, "claimed": back, "acked": back - 1_000_000}
    stored.add({"celery": [Event(event=name, ts=ts, id=tag, task="x") for name, ts in times.items()]})
    fold(root)
    (row,) = rows_of(root, "messages").values()
    assert (row["wait_s"], row["run_s"], row["total_s"]) == (0.0, 0.0, 0.0)
    assert {minute[name] for minute in rows_of(root, "queues").values() for name in ("wait_p50_s", "run_p50_s")} <= {None, 0.0}
