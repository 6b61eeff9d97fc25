"""One pipeline over all shards of a broker: each event once, losses by shard, and a shard that is away keeps no other back."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from pyarrow import dataset

from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.shard_layout import shard_prefixes
from celery_redis_plus.errors import ShardUnreachable, TablesUnusable
from celery_redis_plus.event_log import readers
from celery_redis_plus.keys import Keys
from celery_redis_plus.shards import absent_shard
from celery_redis_plus.shards.event_logs import events_at
from celery_redis_plus.spark import arrow_ingest
from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.checkpoint import position_in
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.lag import Source, lag_of
from celery_redis_plus.spark.losses import TRIMMED, noted
from celery_redis_plus.spark.manifest import Manifest, files
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.views import query
from celery_redis_plus.transport.once_sender import OnceSender
from tests.integration.shards.conftest import SHARDS, named, refuse_shard
from tests.spark.model import aggregate_in_python
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.waiting import wait_until

PREFIXES = shard_prefixes("", SHARDS)
QUEUES = [named(shard) for shard in range(SHARDS)]
LIVES = lives(300)
PATIENCE_S = 60


@pytest.fixture
def url(broker_url):
    return f"{broker_url}?shards={SHARDS}"


@pytest.fixture
def add(redis_client):
    """Add events to the queue of a shard: `add(2, LIVES)`."""

    def run(shard, events, queue=None, epoch=START_MS):
        return add_events(redis_client, queue or QUEUES[shard], events, prefix=PREFIXES[shard], epoch=epoch)

    return run


@pytest.fixture
def ingest(url, tmp_path):
    """Store what is there: `ingest(failOnDataLoss="false")`."""

    def run(*, root=tmp_path, **options):
        source = {"url": url, "readerName": "r", **options}
        ArrowIngest(root, source).run(threading.Event(), lambda _line: None, once=True)

    return run


@pytest.fixture
def away(monkeypatch):
    """Let a shard be away: `away(1)`; `away(None)` is the end of that."""
    real = Connector.open
    monkeypatch.setattr(absent_shard, "PAUSE_S", 0.01)
    return lambda shard: monkeypatch.setattr(Connector, "open", real if shard is None else refuse_shard(shard))


def stored(root):
    """Return (queue, n) of each row of `events`."""
    try:
        found = dataset.dataset(files(root, "events")).to_table(columns=["queue", "n"])
    except TablesUnusable:
        return []
    return list(zip(*(found.column(name).to_pylist() for name in ("queue", "n")), strict=True))


def numbers(counts):
    return {(QUEUES[shard], n) for shard, count in counts.items() for n in range(1, count + 1)}


def test_the_tables_have_the_events_of_all_shards_once(add, ingest, url, tmp_path):
    counts = {shard: add(shard, LIVES[: 100 * (shard + 1)]) for shard in range(SHARDS)}
    ingest(maxOffsetsPerTrigger="77")
    counts = {shard: count + add(shard, LIVES[100 * (shard + 1) :]) for shard, count in counts.items()}
    ingest()
    rows = stored(tmp_path)
    assert len(rows) == len(set(rows)) == sum(counts.values())
    assert set(rows) == numbers(counts)
    fold(tmp_path)
    read = dataset.dataset(files(tmp_path, "messages")).to_table(columns=["queue", "id", "state"]).to_pylist()
    model = aggregate_in_python(dict.fromkeys(QUEUES, LIVES))["messages"]
    assert {(row["queue"], row["id"]): row["state"] for row in read} == {key: row["state"] for key, row in model.items()}
    assert not [found for found in check(tmp_path) if found.wrong]
    with events_at(url) as log:
        assert {one.queue: one.behind for one in readers.readers(log, log.queues())} == dict.fromkeys(QUEUES, 0)


def test_a_folder_goes_on_where_shards_are_added(add, ingest, broker_url, url, tmp_path):
    before = {queue: add(0, LIVES[:100], queue) for queue in QUEUES}
    ingest(url=broker_url)
    # The last events before, and the first ones on the queues' own shards.
    late = add(0, LIVES[100:110], QUEUES[1])
    counts = {shard: add(shard, LIVES[200:300], epoch=START_MS + 1000) for shard in (1, 2)}
    ingest()
    rows = dataset.dataset(files(tmp_path, "events")).to_table(columns=["queue", "epoch", "n"])
    assert rows.group_by(["queue", "epoch", "n"]).aggregate([]).num_rows == rows.num_rows
    assert rows.num_rows == sum(before.values()) + late + sum(counts.values())
    assert not noted(tmp_path, Manifest.read(tmp_path))
    with events_at(url) as log:
        assert {one.queue: one.behind for one in readers.readers(log, log.queues())} == {
            **dict.fromkeys(QUEUES, 0),
            f"{QUEUES[1]} (shard 0)": 0,
            f"{QUEUES[2]} (shard 0)": 0,
        }


def test_losses_are_counted_by_shard_and_queue(add, ingest, redis_client, tmp_path):
    counts = {shard: add(shard, LIVES) for shard in range(SHARDS)}
    redis_client.xtrim(Keys(PREFIXES[2]).queue(QUEUES[2]).events, minid=f"{START_MS}-11", approximate=False)
    # Where a queue was before shards were added.
    elsewhere = add(0, LIVES[:50], QUEUES[2], START_MS - 1000)
    ingest(failOnDataLoss="false")
    (lost,) = noted(tmp_path, Manifest.read(tmp_path))
    assert (lost.queue, lost.shard, lost.why, lost.first, lost.last, lost.count) == (QUEUES[2], 2, TRIMMED, 1, 10, 10)
    assert str(lost).startswith(f"queue {QUEUES[2]!r} of shard 2: 10 events")
    assert len(stored(tmp_path)) == sum(counts.values()) - 10 + elsewhere
    fold(tmp_path)
    pytest.importorskip("duckdb")
    assert query(tmp_path, "SELECT queue, shard, count FROM losses").to_pylist() == [
        {"queue": QUEUES[2], "shard": 2, "count": 10}
    ]


def lag_in(root, url):
    position = position_in(opened(root))
    return lag_of(Source(url, "", "*"), position.offset(position.stored()) or {})


def test_a_shard_that_is_away_keeps_no_other_back_and_is_read_once_it_is_there(add, away, url, tmp_path):
    counts = {shard: add(shard, LIVES[:300]) for shard in range(SHARDS)}
    stop, said = threading.Event(), []
    ingest = ArrowIngest(tmp_path, {"url": url, "readerName": "r"})
    away(1)
    thread = threading.Thread(target=ingest.run, args=(stop, said.append), kwargs={"interval_s": 0.1})
    thread.start()
    try:
        wait_until(lambda: set(stored(tmp_path)) == numbers({0: counts[0], 2: counts[2]}), PATIENCE_S)
        lag = lag_in(tmp_path, url)
        assert set(lag.events) == {QUEUES[0], QUEUES[2]}
        assert "shard 1 of 3 is unreachable" in str(lag.unreadable["shard 1"])
        counts[0] += add(0, LIVES[300:])
        wait_until(lambda: set(stored(tmp_path)) == numbers({0: counts[0], 2: counts[2]}), PATIENCE_S)
        away(None)
        wait_until(lambda: set(stored(tmp_path)) == numbers(counts), PATIENCE_S)
        assert lag_in(tmp_path, url).unreadable == {}
        # A micro-batch is stored before it is noted.
        wait_until(lambda: set(lag_in(tmp_path, url).events.values()) == {0}, PATIENCE_S)
        assert not said, said
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert len(stored(tmp_path)) == sum(counts.values())


def test_a_shard_that_was_read_and_is_away_keeps_no_other_back(add, away, ingest, url, tmp_path):
    """To note the positions of its queues failed at each start, and the events of the others waited until it was there."""
    counts = {shard: add(shard, LIVES[:300]) for shard in range(SHARDS)}
    ingest()
    assert set(stored(tmp_path)) == numbers(counts)
    away(1)
    counts[0] += add(0, LIVES[300:])
    stop, said = threading.Event(), []
    again = ArrowIngest(tmp_path, {"url": url, "readerName": "r"})
    thread = threading.Thread(target=again.run, args=(stop, said.append), kwargs={"interval_s": 0.1})
    thread.start()
    try:
        wait_until(lambda: set(stored(tmp_path)) == numbers(counts), PATIENCE_S)
        away(None)
        counts[1] += add(1, LIVES[300:])
        wait_until(lambda: set(stored(tmp_path)) == numbers(counts), PATIENCE_S)
        wait_until(lambda: set(lag_in(tmp_path, url).events.values()) == {0}, PATIENCE_S)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not said, said
    assert len(stored(tmp_path)) == sum(counts.values())
    with events_at(url) as log:
        noted_at = {reader.queue: reader.behind for reader in readers.readers(log, QUEUES)}
    assert noted_at == dict.fromkeys(QUEUES, 0)


def test_a_batch_that_a_shard_broke_is_stored_without_it(add, away, ingest, url, tmp_path, monkeypatch):
    counts = {shard: add(shard, LIVES) for shard in range(SHARDS)}
    real = arrow_ingest.read_range

    def breaks(log, part, **options):
        if part.queue == QUEUES[1]:
            raise ShardUnreachable("shard 1 breaks in the middle")
        return real(log, part, **options)

    monkeypatch.setattr(arrow_ingest, "read_range", breaks)
    with pytest.raises(ShardUnreachable, match="in the middle"):
        ingest()
    monkeypatch.setattr(arrow_ingest, "read_range", real)
    assert not stored(tmp_path)
    planned = json.loads((tmp_path / "checkpoint" / "events" / "offsets" / "0").read_text(encoding="utf-8").splitlines()[-1])
    assert set(planned) == set(QUEUES)

    away(1)
    stop, again = threading.Event(), ArrowIngest(tmp_path, {"url": url, "readerName": "r"})
    thread = threading.Thread(target=again.run, args=(stop, lambda _line: None), kwargs={"interval_s": 0.1})
    thread.start()
    try:
        wait_until(lambda: stored(tmp_path), PATIENCE_S)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert set(stored(tmp_path)) == numbers({0: counts[0], 2: counts[2]})
    away(None)
    ingest()
    assert Counter(stored(tmp_path)) == Counter(numbers(counts))


def test_a_single_run_fails_where_a_shard_is_away(add, away, ingest):
    add(0, LIVES)
    away(1)
    with pytest.raises(ShardUnreachable, match="shard 1 of 3 is unreachable"):
        ingest()


def test_rows_are_sent_to_the_shard_of_their_queue_once(url, redis_client):
    with OnceSender(url) as sender:
        for shard, queue in enumerate(QUEUES):
            sender.send(queue, f"row {shard}", "[[], {}, {}]")
            sender.send(queue, f"row {shard}", "[[], {}, {}]")
    assert (sender.stored, sender.known) == (len(QUEUES), len(QUEUES))
    for shard, queue in enumerate(QUEUES):
        assert redis_client.zcard(Keys(PREFIXES[shard]).queue(queue).ready) == 1


def test_a_session_reads_all_shards(add, url, tmp_path, request):
    pytest.importorskip("pyspark", reason="needs the extra `spark`")
    counts = {QUEUES[shard]: add(shard, LIVES[: 100 * (shard + 1)]) for shard in range(SHARDS)}
    spark = request.getfixturevalue("spark")
    frame = spark.read.format("celery_redis").options(url=url, maxRecordsPerPartition=90).load()
    assert {row["queue"]: row["count"] for row in frame.groupBy("queue").count().collect()} == counts
    assert frame.select("queue", "epoch", "n").distinct().count() == sum(counts.values())
    narrowed = spark.read.format("celery_redis").options(url=url, pushFilters="true").load().where(f"queue = '{QUEUES[1]}'")
    assert narrowed.count() == counts[QUEUES[1]]
    from celery_redis_plus.spark.ingest import run_once

    run_once(spark, tmp_path / "tables", {"url": url, "readerName": "r", "maxOffsetsPerTrigger": "200"})
    wanted = Counter((queue, n) for queue, count in counts.items() for n in range(1, count + 1))
    assert Counter(stored(tmp_path / "tables")) == wanted
