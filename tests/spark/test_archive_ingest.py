"""What `events archive --events` has moved is a source of the same tables, each event once. No Java."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from celery_redis_plus.cli.main import main
from celery_redis_plus.errors import InvalidArgument, TablesUnusable
from celery_redis_plus.event_log import archiver
from celery_redis_plus.event_log.archiver import move_finished
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark import archive_ingest
from celery_redis_plus.spark.archive_ingest import store_archive
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.losses import EXPIRED, TRIMMED, Loss, noted
from celery_redis_plus.spark.manifest import TABLES, Manifest, files
from celery_redis_plus.spark.snapshot import Snapshot
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.stored_events import StoredEvents

LIVES = lives(600)


def run_job(*words):
    pytest.importorskip("pyspark", reason="needs the extra `spark`, as the command does")
    assert main(["spark", *words]) == 0


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(archiver, "EVENTS_A_FILE", 300)


@pytest.fixture
def log(broker_url):
    with EventLog(broker_url) as opened_log:
        yield opened_log


@pytest.fixture
def ingest(broker_url):
    """Store what the stream has, and trim what both readers have."""

    def run(root):
        run_job("ingest", "--root", str(root), "--url", broker_url, "--once", "--trim")

    return run


def rows_of(root, table):
    rows = Snapshot(root).dataset(table).to_table().to_pylist()
    return sorted(
        rows, key=lambda row: [str(row.get(name)) for name in ("queue", "task", "worker", "id", "minute", "epoch", "n")]
    )


def everything(root):
    fold(root)
    assert [finding for finding in check(root) if finding.wrong] == []
    return {table: rows_of(root, table) for table in ("events", *TABLES)}


def test_an_archive_and_a_stream_give_the_same_tables(log, redis_client, broker_url, ingest, tmp_path):
    add_events(redis_client, "celery", LIVES, payload=b"{}\nbody")
    add_events(redis_client, "mail", LIVES[:500])
    run_job("ingest", "--root", str(tmp_path / "streamed"), "--url", broker_url, "--once")
    move_finished(log, ["celery", "mail"], tmp_path / "archive", events=True)

    run_job("ingest", "--root", str(tmp_path / "archived"), "--from-archive", str(tmp_path / "archive"))

    assert everything(tmp_path / "archived") == everything(tmp_path / "streamed")


def test_events_of_both_are_counted_once_in_any_order(log, redis_client, broker_url, ingest, tmp_path):
    """The archive trims what the stream's ingest had not read yet: that is no loss, as it comes from there."""
    root, other, archive = tmp_path / "tables", tmp_path / "other", tmp_path / "archive"
    for number in range(6):
        add_events(redis_client, "celery", LIVES[number * 300 : number * 300 + 300])
        run_job("ingest", "--root", str(other), "--url", broker_url, "--once")
        if number in {0, 3}:
            ingest(root)
        if number in {1, 3, 4}:
            move_finished(log, ["celery"], archive, events=True)
        if number in {1, 4}:
            store_archive(root, archive, lambda *_: None)
            fold(root)
    ingest(root)
    store_archive(root, archive, lambda *_: None)
    assert len(rows_of(root, "events")) == 1800
    assert everything(root) == everything(other)


def test_a_loss_that_an_archive_supplies_is_none_any_more(log, redis_client, broker_url, tmp_path):
    """The archive had trimmed the stream before its ingest read it."""
    root, archive, part = tmp_path / "tables", tmp_path / "archive", tmp_path / "part"
    add_events(redis_client, "celery", LIVES)
    redis_client.xtrim(log.keys.queue("celery").events, maxlen=len(LIVES) - 50, approximate=False)
    move_finished(log, ["celery"], archive, events=True)
    add_events(redis_client, "celery", lives(10, seed=2))
    run_job("ingest", "--root", str(root), "--url", broker_url, "--once", "--allow-data-loss")
    fold(root)

    def lost():
        return [(loss.why, loss.first, loss.last, loss.count) for loss in noted(root, Manifest.read(root))]

    (_, first, last, count), *_ = lost()
    assert (first, count) == (1, last)
    assert last > 650, "the archive has too few"

    finished = sorted((archive / "queue=celery").glob("finished-*"))
    (part / "queue=celery").mkdir(parents=True)
    for file in (finished[1], finished[1].with_name(finished[1].name.replace("finished", "events", 1))):
        shutil.copy(file, part / "queue=celery")
    store_archive(root, part, lambda *_: None)
    supplied = [(TRIMMED, 1, 350, 350), (TRIMMED, 651, last, last - 650)]
    assert lost() == supplied
    fold(root)
    assert lost() == supplied

    said = []
    store_archive(root, archive, lambda _number, stored: said.extend(map(str, stored.losses)))
    assert (
        said[0]
        == f"queue 'celery': 300 events, {START_MS}-51 to {START_MS}-350, that were noted as trimmed come from the archive"
    )
    fold(root)
    assert lost() == [(TRIMMED, 1, 50, 50)]
    assert [finding.check for finding in check(root) if finding.wrong] == ["losses"]
    pytest.importorskip("matplotlib", reason="the report needs the extra `spark`")
    from celery_redis_plus.spark import report, summaries

    figures = summaries.summaries(Snapshot(root), period=summaries.Period())
    assert ": 50 events were trimmed" in report.warning(figures)


def test_an_archive_of_another_broker_is_refused_or_moves_no_position(redis_client, broker_url, tmp_path):
    """It has a queue of the same name, whose numbering began later."""
    root, archive = tmp_path / "tables", tmp_path / "archive"
    others = lives(100, seed=2, queue_id="2")
    for prefix, epoch, events in (("", START_MS, LIVES[:300]), ("other:", START_MS + 1000, others)):
        redis_client.set(Keys(prefix).database_id, f"database{epoch}")
        add_events(redis_client, "celery", events, prefix=prefix, epoch=epoch)
    run_job("ingest", "--root", str(root), "--url", broker_url, "--once")
    with EventLog(broker_url, "other:") as other:
        move_finished(other, ["celery"], archive, events=True)

    with pytest.raises(TablesUnusable, match="another broker"):
        store_archive(root, archive, lambda *_: None)
    run_job("ingest", "--root", str(root), "--from-archive", str(archive), "--allow-data-loss")
    add_events(redis_client, "celery", LIVES[300:])
    run_job("ingest", "--root", str(root), "--url", broker_url, "--once")
    assert len(everything(root)["events"]) == len(LIVES) + len(others)


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_damaged_description_of_a_folder_is_named_and_comes_anew(log, redis_client, tmp_path, text):
    root, archive = tmp_path / "tables", tmp_path / "archive"
    add_events(redis_client, "celery", LIVES[:300])
    move_finished(log, ["celery"], archive, events=True)
    description = archive / "queue=celery" / "queue.json"
    description.write_text(text)
    with pytest.raises(InvalidArgument, match=r"queue\.json is damaged: `events archive` writes it anew when it is deleted"):
        store_archive(root, archive, lambda *_: None)
    description.unlink()
    move_finished(log, ["celery"], archive, events=True)
    store_archive(root, archive, lambda *_: None)
    assert json.loads(description.read_text())["queue"] == "celery"
    assert everything(root)["events"]


def test_millions_of_expired_events_take_no_memory(log, redis_client, tmp_path):
    """A queue of eight events a second, after a year."""
    root, archive, last = tmp_path / "tables", tmp_path / "archive", 250_000_000
    stream = log.keys.queue("celery").events
    add_events(redis_client, "celery", LIVES[:10])
    redis_client.xtrim(stream, maxlen=0, approximate=False)
    newest = f"{START_MS}-{last}"
    redis_client.execute_command("XSETID", stream, newest, "ENTRIESADDED", last, "MAXDELETEDID", newest)
    count = add_events(redis_client, "celery", lives(10, seed=2))
    move_finished(log, ["celery"], archive, events=True)
    StoredEvents(root).add({"mail": LIVES[:3]}, [Loss("celery", EXPIRED, START_MS, 1, last, last, None, None, 0)])
    fold(root)
    stored = []
    tracemalloc.start()
    try:
        store_archive(root, archive, lambda _number, batch: stored.append(batch.rows))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert sum(stored) == count
    fold(root)
    assert [loss.why for loss in noted(root, Manifest.read(root))] == [EXPIRED]


def test_an_archive_supplies_what_was_trimmed_among_removed_events(log, redis_client, tmp_path):
    """A loss of removed events has their first and their last number."""
    root, archive = tmp_path / "tables", tmp_path / "archive"
    add_events(redis_client, "celery", LIVES)
    move_finished(log, ["celery"], archive, events=True)
    trimmed = Loss("celery", TRIMMED, START_MS, 11, 20, 10, None, None, 0)
    removed = Loss("celery", EXPIRED, START_MS, 1, 30, 20, None, None, 0)
    StoredEvents(root).add({"mail": LIVES[:3]}, [trimmed, removed])
    fold(root)
    store_archive(root, archive, lambda *_: None)
    fold(root)
    numbers = [row["n"] for row in rows_of(root, "events") if row["queue"] == "celery"]
    assert [n for n in sorted(numbers) if n <= 31] == [*range(11, 21), 31]
    assert [loss.why for loss in noted(root, Manifest.read(root))] == [EXPIRED]


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_killed_in_a_batch_it_goes_on(request, log, redis_client, tmp_path, monkeypatch, place):
    root = request.getfixturevalue("s3").url if place == "s3" else str(tmp_path / "tables")
    add_events(redis_client, "celery", LIVES)
    move_finished(log, ["celery"], tmp_path / "archive", events=True)
    store, batches = archive_ingest.store_batch, []

    def killed(*arguments):
        batches.append(1)
        if len(batches) == 3:
            raise RuntimeError("killed")
        return store(*arguments)

    def run():
        store_archive(root, tmp_path / "archive", lambda *_: None)

    with monkeypatch.context() as patch:
        patch.setattr(archive_ingest, "store_batch", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run()
    run()
    rows = everything(root)["events"]
    assert len(rows) == len({(row["queue"], row["epoch"], row["n"]) for row in rows}) == len(LIVES)


def test_what_cannot_be_stored_is_told(log, redis_client, tmp_path):
    with pytest.raises(InvalidArgument, match="has no files of"):
        store_archive(tmp_path / "tables", tmp_path / "archive", lambda *_: None)
    add_events(redis_client, "celery", LIVES)
    move_finished(log, ["celery"], tmp_path / "archive")
    with pytest.raises(InvalidArgument, match="without its events"):
        store_archive(tmp_path / "tables", tmp_path / "archive", lambda *_: None)
    with pytest.raises(TablesUnusable):
        files(tmp_path / "tables", "events")
