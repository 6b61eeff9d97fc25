"""Ingest without Spark: each event once, whatever is killed; and it changes with Spark's at any time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

import pyarrow.compute as pc
from pyarrow import dataset, parquet

from celery_redis_plus.errors import EventsLost, TablesUnusable
from celery_redis_plus.event_log import batches, readers
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.events import FIELD, Event, encode
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark import arrow_ingest, checkpoint
from celery_redis_plus.spark.arrow_ingest import ArrowIngest, Bounds, write_days
from celery_redis_plus.spark.checkpoint import position_in
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.incoming import waiting
from celery_redis_plus.spark.known_broker import BROKER_FILE
from celery_redis_plus.spark.lag import Source, lag_of
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS
from celery_redis_plus.spark.losses import TRIMMED, noted
from celery_redis_plus.spark.manifest import MIXED, Manifest, files, new_batches
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import COMMITTED
from tests.support.event_streams import START_MS, add_events, begin_epoch, lives
from tests.support.machine_time import machine_time
from tests.support.servers import new_server
from tests.support.spark_jobs import Job
from tests.support.waiting import wait_until

LIVES = lives(1000)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "tables"


@pytest.fixture
def once(root, broker_url):
    """Store what there is: `once(maxOffsetsPerTrigger=100)`; return the batches as (number, rows)."""

    def run(**options):
        done = []
        source = {"url": broker_url, "readerName": "r", "readerOwner": "me", **options}
        ingest = ArrowIngest(root, source, lambda number, stored: done.append((number, stored.rows)))
        ingest.run(threading.Event(), done.append, once=True)
        return done

    return run


def rows(root):
    return dataset.dataset(files(root, "events"), schema=LAYOUTS[EVENTS].schema).to_table()


def exact(root, count):
    numbers = rows(root).select(["queue", "n"]).to_pylist()
    assert len(numbers) == len({tuple(row.values()) for row in numbers}) == count


def test_events_are_stored_once_in_batches_and_by_day(once, root, redis_client):
    late = lives(300, start_ms=START_MS + (8 * 3600 - 60) * 1000, spacing_us=700_000)
    count = add_events(redis_client, "celery", LIVES) + add_events(redis_client, "größe", late)
    done = once(maxOffsetsPerTrigger=700)
    assert [number for number, _ in done] == list(range(len(done)))
    assert sum(stored for _, stored in done) == count
    assert all(stored <= 702 for _, stored in done)
    exact(root, count)
    assert once() == []
    count += add_events(redis_client, "celery", LIVES[:50])
    assert once() == [(len(done), 50)]
    exact(root, count)
    read = rows(root)
    assert set(read.column("queue").to_pylist()) == {"celery", "größe"}
    assert len(read.column("date").unique()) == 2
    for batch in new_batches(root, Manifest.read(root)):
        for day, names in batch.files.items():
            for name in names:
                dates = parquet.read_table(root / name, columns=["date"]).column("date").unique().to_pylist()
                assert len(dates) == 2 if day == MIXED else [date.isoformat() for date in dates] == [day]


def test_its_reader_knows_what_is_stored_and_trims(once, redis_client, broker_url):
    count = add_events(redis_client, "celery", LIVES)
    once(trimOnCommit="true")
    with EventLog(broker_url) as log:
        (reader,) = readers.readers(log, ["celery"])
        assert (reader.name, reader.behind) == ("r", 0)
        assert redis_client.xlen(log.keys.queue("celery").events) < min(200, count)


@pytest.mark.parametrize("where", ["planned", "written", "marked", "folded"])
def test_a_batch_that_was_interrupted_is_the_same_again(once, root, redis_client, monkeypatch, where):
    count = add_events(redis_client, "celery", LIVES)
    once(maxOffsetsPerTrigger=500)
    more = add_events(redis_client, "celery", LIVES[:300])

    class KilledError(Exception):
        pass

    def killed(*_arguments):
        raise KilledError

    with monkeypatch.context() as patch:
        if where == "planned":
            patch.setattr(arrow_ingest, "store_batch", killed)
        elif where == "written":
            patch.setattr("celery_redis_plus.spark.loss_counter.LossCounter.losses", killed)
        else:
            patch.setattr(checkpoint.Checkpoint, "commit", killed)
        with pytest.raises(KilledError):
            once()
    if where == "folded":
        fold(root)
    # It would have been in the batch, had its end not been noted.
    more += add_events(redis_client, "celery", LIVES[:7])
    done = once()
    assert sum(stored for _, stored in done) == (307 if where in {"planned", "written"} else 300 * (where == "marked") + 7)
    exact(root, count + more)


def test_losses_are_counted(once, root, redis_client):
    count = add_events(redis_client, "celery", LIVES)
    redis_client.xtrim(Keys("").queue("celery").events, maxlen=500, approximate=False)
    once()
    (loss,) = noted(root, Manifest.read(root))
    assert (loss.why, loss.count, loss.first) == (TRIMMED, count - 500, 1)
    add_events(redis_client, "celery", LIVES)
    redis_client.xtrim(Keys("").queue("celery").events, maxlen=10, approximate=False)
    with pytest.raises(EventsLost, match=rf"{count - 10} events.* were trimmed"):
        once()
    once(failOnDataLoss="false")
    assert sum(found.count for found in noted(root, Manifest.read(root))) == count - 500 + count - 10


def test_memory_is_bounded_by_bytes_and_many_days_have_a_file_each(root, tmp_path, monkeypatch, redis_client, once):
    monkeypatch.setattr(arrow_ingest, "BYTES_AT_ONCE", 1)
    count = sum(add_events(redis_client, "celery", lives(20, seed=day, start_ms=START_MS + day * 86_400_000)) for day in range(5))
    once(fetchSize=10)
    exact(root, count)
    assert len(files(root, "events")) == 5 + 1, "one has the pieces that are of two days"


def test_a_batch_of_years_puts_a_part_of_its_days_together(tmp_path, monkeypatch):
    """What shares a file is in memory as a whole at times."""
    monkeypatch.setattr(arrow_ingest, "ROWS_A_GROUP", 500)
    monkeypatch.setattr(arrow_ingest, "MOST_MIXED", 700)
    storage = opened(tmp_path)
    pieces = []
    for number in range(20):
        made = []
        for place in range(100):
            ms = START_MS + (number * 5 + place % 40) * 86_400_000
            event = Event(event="published", ts=ms * 1000, id=f"{ms:011x}{place:08x}.1")
            made.append((b"%d-%d" % (START_MS, number * 100 + place + 1), (FIELD, encode(event))))
        pieces.append(batches.batch("q", made))
    opened_writers, most, writer = [], [], storage.writer

    def counted(name, schema):
        opened_writers.append(writer(name, schema))
        most.append(sum(each.is_open for each in opened_writers))
        return opened_writers[-1]

    monkeypatch.setattr(storage, "writer", counted)
    monkeypatch.setattr(arrow_ingest, "MOST_WRITERS", 7)
    write_days(storage, pieces, "years")
    assert max(most) == 7, "a process has so many files"
    rows = Counter()
    for name in storage.names("years"):
        rows[Path(name).parent.name] += storage.row_count(name)
    assert rows.total() == 2000
    assert 700 < rows[MIXED] <= 700 + 500
    assert len(rows) > 30


def test_the_events_of_many_queues_cost_what_those_of_few_do(tmp_path):
    """A micro-batch has a piece of each queue. Each piece asked all that were held for their bytes: at 300 queues, 5 s of 6."""
    made = [(b"%d-%d" % (START_MS, place), (FIELD, encode(event))) for place, event in enumerate(LIVES[:30], 1)]
    pieces = [batches.batch(f"q{number}", made) for number in range(500)]

    def cost_s(count):
        began = time.process_time()
        write_days(opened(tmp_path), pieces[:count], f"of{count}")
        return (time.process_time() - began) / count

    cost_s(10)
    assert cost_s(500) < 3 * min(cost_s(50) for _ in range(3))


def test_a_batch_is_bounded_by_bytes(root, redis_client, broker_url):
    count = add_events(redis_client, "celery", lives(3000))
    done = []
    ingest = ArrowIngest(
        root, {"url": broker_url}, lambda _number, stored: done.append(stored), Bounds(batch_bytes=40_000)
    )  # fmt: skip
    ingest.run(threading.Event(), done.append, once=True)
    assert done[0].rows == arrow_ingest.FIRST_EVENTS, "nothing is known of their size yet"
    assert len(done) > 3
    assert all(stored.bytes < 80_000 for stored in done)
    exact(root, count)


@pytest.mark.parametrize("bounds", [Bounds(waiting_events=500), Bounds(waiting_bytes=1)])
def test_it_waits_for_the_aggregation(root, redis_client, broker_url, bounds):
    """A disk is filled by what nobody aggregates; in Redis the events are bounded."""
    count = add_events(redis_client, "celery", LIVES)
    done, stop = [], threading.Event()
    source = {"url": broker_url, "maxOffsetsPerTrigger": 400}
    ingest = ArrowIngest(root, source, lambda _number, stored: done.append(stored.rows), bounds)
    thread = threading.Thread(target=ingest.run, args=(stop, done.append), kwargs={"interval_s": 0.05})
    thread.start()
    try:
        folded, batches = 0, 2 if bounds.waiting_events else 1
        while folded < count:
            # A share of the limit is rounded up.
            least = min(count - folded, 400 * batches)
            wait_until(lambda folded=folded, least=least: sum(done) - folded >= least, 60)
            assert waiting(root, Manifest.read(root)).events <= least + batches, "no more are read"
            folded += fold(root).events
    finally:
        stop.set()
        thread.join(60)
    exact(root, count)


def test_it_is_killed_and_loses_and_doubles_nothing(redis_client, broker_url, root, tmp_path):
    pytest.importorskip("pyspark", reason="needs the extra `spark`, as the command does")
    events = lives(20_000)
    count = add_events(redis_client, "celery", events)
    kills = 0
    while True:
        words = ("ingest", "--url", broker_url, "--root", str(root), "--batch", "3000", "--once", "--reader", "r", "--trim")
        job = Job((sys.executable, "-P", "-m", "celery_redis_plus", "spark", *words), tmp_path / f"job{kills}.log")
        try:
            if kills == 4:
                job.process.wait(120)
                break
            job.until(lambda kills=kills, job=job: job.said.count("batch ") >= 2 + kills % 2 or job.process.poll() is not None)
            job.process.send_signal(signal.SIGKILL)
            job.process.wait(60)
            kills += 1
        finally:
            job.end()
    exact(root, count)


def test_a_service_without_java_outlives_its_ingest_and_ends_within_ten_seconds(redis_client, broker_url, root, tmp_path):
    pytest.importorskip("pyspark", reason="needs the extra `spark`, as the command does")
    events = lives(600)
    add_events(redis_client, "celery", events[:700])
    words = ("run", "--url", broker_url, "--root", str(root), "--fresh", "0.5", "--keep-versions", "60", "--trim")
    # No JVM can start.
    no_java = {"JAVA_HOME": str(tmp_path / "none")}
    job = Job((sys.executable, "-P", "-m", "celery_redis_plus", "spark", *words), tmp_path / "job.log", no_java)

    def whole(count):
        status = root / "status.json"
        return status.exists() and json.loads(status.read_text(encoding="utf-8"))["freshness_s"] == 0 and stored() == count

    def stored():
        with suppress(TablesUnusable):
            return rows(root).num_rows
        return 0

    try:
        job.until(lambda: whole(700))
        threads = Path(f"/proc/{job.process.pid}/task").iterdir()
        (child,) = [int(word) for thread in threads for word in (thread / "children").read_text(encoding="utf-8").split()]
        os.kill(child, signal.SIGKILL)
        job.until(lambda: "was killed by signal 9; it starts again in 1 s" in job.said)
        add_events(redis_client, "celery", events[700:])
        job.until(lambda: whole(len(events)))
        began = machine_time()
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(60) == 0, job.said
        assert machine_time() - began < 10
    finally:
        job.end()
    exact(root, len(events))


def test_it_outlives_a_restart_of_the_server(root):
    said, stop = [], threading.Event()
    with new_server({"appendonly": "yes", "appendfsync": "always"}) as server:
        with server.client() as client:
            add_events(client, "celery", LIVES[:500])
        done = []
        ingest = ArrowIngest(root, {"url": server.url()}, lambda *batch: done.append(batch))
        thread = threading.Thread(target=ingest.run, args=(stop, said.append), kwargs={"interval_s": 0.1})
        thread.start()
        try:
            wait_until(lambda: done, 60)
            server.kill()
            wait_until(lambda: any(line.endswith("it starts again in 2 s") for line in said), 60)
            server.restart()
            with server.client() as client:
                add_events(client, "celery", LIVES[500:800])
            wait_until(lambda: len(done) >= 2, 60)
        finally:
            stop.set()
            thread.join(60)
    exact(root, 800)


def test_a_folder_changes_between_this_and_spark_at_any_time(spark, once, root, redis_client, broker_url):
    from celery_redis_plus.spark import ingest

    count, source = 0, {"url": broker_url, "readerName": "r", "readerOwner": "me"}
    for turn in range(5):
        count += add_events(redis_client, "celery", LIVES[: 300 + turn])
        if turn % 2:
            ingest.run_once(spark, root, source)
        else:
            once(maxOffsetsPerTrigger=100)
        exact(root, count)
    # Spark planned a batch and stored it, and was killed before it noted that.
    last = max((root / "checkpoint" / "events" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    for marker in (root / "incoming").glob(f"*/{int(last.name):08}/{COMMITTED}"):
        shutil.rmtree(marker.parent)
    once()
    exact(root, count)
    ingest.run_once(spark, root, source)
    exact(root, count)
    assert pc.count_distinct(rows(root).column("queue")).as_py() == 1


def forget_the_last(client, queue, count):
    """Let a queue's stream lack its last events, as after a failover to a replica that lagged."""
    keys = Keys().queue(queue)
    entries = client.xrange(keys.events)
    client.delete(keys.events)
    for number, fields in entries[:-count]:
        client.xadd(keys.events, fields, id=number)


@pytest.mark.parametrize("run", ["other", "same"])
def test_a_failover_that_lost_the_last_events_of_a_quiet_queue_stops_no_other_one(once, root, redis_client, broker_url, run):
    """Another run of the server ends the epoch with its next event: what was read is read, and nothing can take its numbers."""
    count = add_events(redis_client, "quiet", LIVES[:8]) + add_events(redis_client, "busy", LIVES[:50])
    once()
    forget_the_last(redis_client, "quiet", 3)
    written_in = "0" * 40 if run == "other" else redis_client.info("server")["run_id"]
    redis_client.hset(Keys().queue("quiet").events_meta, "run", written_in)
    count += add_events(redis_client, "busy", LIVES[50:80])
    if run == "same":
        with pytest.raises(EventsLost, match="queue 'quiet': the events were read up to"):
            once()
        # What it had read is not read again, and the numbers that are given again are other events.
        once(failOnDataLoss="false")
        exact(root, count)
        count += add_events(redis_client, "quiet", LIVES[8:10])
        once(failOnDataLoss="false")
        found = rows(root).filter(pc.field("queue") == "quiet")
        assert (rows(root).num_rows, found.num_rows) == (count, 10)
        return
    for _ in range(2):
        once()
        exact(root, count)
        count += add_events(redis_client, "busy", LIVES[80:90])
    position = position_in(opened(root))
    stored = position.offset(position.stored())
    assert stored["quiet"] == f"{START_MS}-8"
    assert lag_of(Source(broker_url, "", "*"), stored).events == {"busy": 10, "quiet": 0}
    begin_epoch(redis_client, "quiet", START_MS + 5, LIVES[8])
    redis_client.hset(Keys().queue("quiet").events_meta, "run", redis_client.info("server")["run_id"])
    count += 1 + add_events(redis_client, "quiet", LIVES[9:12])
    once()
    found = rows(root).filter(pc.field("queue") == "quiet").sort_by([("epoch", "ascending"), ("n", "ascending")])
    assert found.select(["epoch", "n"]).to_pylist() == [
        {"epoch": epoch, "n": n} for epoch, last in ((START_MS, 8), (START_MS + 5, 4)) for n in range(1, last + 1)
    ]
    assert found.num_rows + rows(root).filter(pc.field("queue") == "busy").num_rows == count


def test_another_broker_is_refused_until_it_is_said_to_be_the_one(once, root, redis_client, broker_url):
    """Its queues have other names; the first broker's would leave the offset, and come a second time."""
    count = add_events(redis_client, "shop", LIVES[:50])
    redis_client.set(Keys().database_id, "1.first")
    once()
    redis_client.flushdb()
    count += add_events(redis_client, "test", LIVES[:3])
    redis_client.set(Keys().database_id, "1.second")
    for _ in range(2):
        with pytest.raises(TablesUnusable, match="another broker: its database was first, and this one is second"):
            once()
    once(failOnDataLoss="false")
    exact(root, count)
    # As one with several shards, it is the same.
    redis_client.set(Keys().database_id, "1.second.1")
    assert once() == []


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_job_says_that_its_broker_is_another_one(engine, root, redis_client, broker_url, tmp_path):
    pytest.importorskip("pyspark", reason="needs the extra `spark`, as the command does")
    add_events(redis_client, "shop", LIVES[:50])
    opened(root).write_json(BROKER_FILE, {"0": "first"})
    redis_client.set(Keys().database_id, "1.second")
    words = ("ingest", "--once", "--url", broker_url, "--root", str(root), "--engine", engine)
    job = Job((sys.executable, "-P", "-m", "celery_redis_plus", "spark", *words), tmp_path / "job.log", {})
    try:
        assert job.process.wait(60) == 1
    finally:
        job.end()
    assert "has the events of another broker" in job.said
    assert "Traceback" not in job.said
