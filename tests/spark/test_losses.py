"""Events that never reach the tables are counted, each once: trimmed, not written, sampled away. No test here needs Java."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

import pyarrow as pa
from pyarrow import parquet

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark import losses, manifest
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.loss_counter import LossCounter
from celery_redis_plus.spark.losses import MEMORY_FULL, NO_EVENT, SAMPLED, SUPPLIED, TRIMMED, Loss
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.partition_reader import read_range
from celery_redis_plus.spark.read_plan import Planner
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.source_options import SourceOptions
from celery_redis_plus.spark.storage import COMMITTED
from tests.support.event_streams import START_MS, add_events, begin_epoch, lives

LIVES = lives(300)
NOW = 1_800_000_000_000_000


def keys_of(queue):
    return Keys("").queue(queue)


@pytest.fixture
def ingest(broker_url, tmp_path):
    """Read what is new as a micro-batch, and count what it lacks: `ingest()`. `ingest.known` are the losses so far."""

    class Ingest:
        def __init__(self):
            self.options = SourceOptions.from_mapping({"url": broker_url, "failOnDataLoss": "false"})
            self.known, self.offset, self.batches = [], None, 0
            self.restart()

        def restart(self):
            self.counter = LossCounter(opened(tmp_path), self.options, self.known)

        def __call__(self, limit=None):
            with EventLog(broker_url) as log:
                planner = Planner(log, self.options)
                end = planner.advance(self.offset or {}, limit)
                read = [
                    batch
                    for part in planner.event_ranges(self.offset or {}, end)
                    for batch in read_range(log, part, fail_on_data_loss=False)
                ]
                file = tmp_path / f"{self.batches}.parquet"
                parquet.write_table(pa.Table.from_batches(read), file)
                found = self.counter.losses(log, [file.name], self.offset, end)
            self.offset, self.batches, self.known = end, self.batches + 1, self.known + found
            return found

    return Ingest()


def facts(found):
    return [(loss.queue, loss.why, loss.epoch, loss.first, loss.last, loss.count) for loss in found]


def us(event):
    return event.ts


def test_events_that_are_there_lack_nothing(ingest, redis_client):
    add_events(redis_client, "celery", LIVES)
    add_events(redis_client, "mail", LIVES[:10])
    begin_epoch(redis_client, "mail", START_MS + 1000, LIVES[10])
    assert ingest(limit=100) == []
    assert ingest() == []


def test_what_was_trimmed_is_counted_with_its_numbers_and_times(ingest, redis_client):
    add_events(redis_client, "celery", LIVES[:500])
    redis_client.xtrim(keys_of("celery").events, maxlen=400, approximate=False)
    redis_client.xdel(keys_of("celery").events, *(f"{START_MS}-{n}" for n in range(201, 211)))
    first, second = ingest()
    assert facts([first, second]) == [
        ("celery", TRIMMED, START_MS, 1, 100, 100),
        ("celery", TRIMMED, START_MS, 201, 210, 10),
    ]
    assert (first.from_at, first.to_at) == (None, us(LIVES[100]))
    assert (second.from_at, second.to_at) == (us(LIVES[199]), us(LIVES[210]))
    assert str(first) == f"queue 'celery': 100 events, {START_MS}-1 to {START_MS}-100, were trimmed before they were read"

    add_events(redis_client, "celery", LIVES[500:700])
    redis_client.xtrim(keys_of("celery").events, maxlen=50, approximate=False)
    assert facts(ingest()) == [("celery", TRIMMED, START_MS, 501, 650, 150)]


def test_numbers_go_on_over_epochs_of_a_log(ingest, redis_client):
    add_events(redis_client, "celery", LIVES[:20])
    ingest()
    add_events(redis_client, "celery", LIVES[20:30])
    begin_epoch(redis_client, "celery", START_MS + 1000, LIVES[30])
    redis_client.xtrim(keys_of("celery").events, maxlen=4, approximate=False)
    assert facts(ingest()) == [("celery", TRIMMED, START_MS, 21, 27, 7)]


def test_entries_that_are_no_events_are_not_lost(ingest, redis_client):
    add_events(redis_client, "celery", LIVES[:20])
    redis_client.xadd(keys_of("celery").events, {"somebody": "else"}, id=f"{START_MS}-*")
    add_events(redis_client, "celery", LIVES[20:30])
    assert facts(ingest()) == [("celery", NO_EVENT, START_MS, 21, 21, 1)]


def test_events_that_were_not_written_are_counted_once_also_after_a_restart(ingest, redis_client):
    meta = keys_of("celery").events_meta
    add_events(redis_client, "celery", LIVES[:10])
    redis_client.hset(meta, "skipped", 300)
    assert facts(ingest()) == [("celery", MEMORY_FULL, START_MS, 1, 300, 300)]
    add_events(redis_client, "celery", LIVES[10:20])
    assert ingest() == []
    ingest.restart()
    redis_client.hset(meta, "skipped", 320)
    add_events(redis_client, "celery", LIVES[20:30])
    assert facts(ingest()) == [("celery", MEMORY_FULL, START_MS, 301, 320, 20)]


def test_a_log_that_began_anew_counts_what_it_did_not_write_from_one(ingest, redis_client):
    keys = keys_of("celery")
    add_events(redis_client, "celery", LIVES[:10])
    redis_client.hset(keys.events_meta, "skipped", 300)
    ingest()
    redis_client.delete(keys.events, keys.events_meta)
    add_events(redis_client, "celery", LIVES[:10], epoch=START_MS + 5000)
    redis_client.hset(keys.events_meta, "skipped", 5)
    assert facts(ingest()) == [("celery", MEMORY_FULL, START_MS + 5000, 1, 5, 5)]


@pytest.mark.parametrize(
    ("permille", "estimate"), [(b"", 0), (b"x", 0), (b"-5", 0), (b"0", 0), (b"1000", 0), (b"200", 400), (b"500", 100)]
)
def test_what_a_sample_leaves_out_is_estimated(ingest, redis_client, permille, estimate):
    add_events(redis_client, "celery", LIVES[:100])
    redis_client.hset(keys_of("celery").events_meta, "permille", permille)
    found = ingest()
    assert [(loss.why, loss.count) for loss in found] == ([(SAMPLED, estimate)] if estimate else [])


def commit(root, number, *found):
    marker = {"rows": 0, "files": {}, "losses": [asdict(loss) for loss in found]}
    opened(root).write_json(f"incoming/run/{number:08}/{COMMITTED}", marker)


def sampled(count, noted_at=NOW):
    return Loss("celery", SAMPLED, START_MS, None, None, count, noted_at - 10, noted_at, noted_at)


def test_the_table_has_each_loss_once_and_samples_by_day(tmp_path):
    trimmed = Loss("celery", TRIMMED, START_MS, 1, 100, 100, None, NOW, NOW)
    commit(tmp_path, 0, trimmed, sampled(5))
    commit(tmp_path, 1, sampled(7, NOW + 1000))
    fold(tmp_path)
    commit(tmp_path, 2, sampled(1, NOW + 86_400_000_000))
    fold(tmp_path)

    assert losses.noted(tmp_path, Manifest.read(tmp_path)) == [
        trimmed,
        Loss("celery", SAMPLED, START_MS, None, None, 12, NOW - 10, NOW + 1000, NOW + 1000),
        sampled(1, NOW + 86_400_000_000),
    ]
    assert parquet.read_table(manifest.files(tmp_path, "losses")[0]).num_rows == 3


def test_where_all_that_was_lost_is_supplied_there_is_no_table(tmp_path):
    commit(tmp_path, 0, Loss("celery", TRIMMED, START_MS, 11, 100, 90, None, NOW, NOW))
    fold(tmp_path)
    assert manifest.files(tmp_path, "losses")
    commit(tmp_path, 1, *(Loss("celery", SUPPLIED, START_MS, n, n + 50, 51, None, None, NOW) for n in (1, 52)))
    commit(tmp_path, 2, Loss("mail", SUPPLIED, START_MS, 1, 50, 50, None, None, NOW))
    assert losses.noted(tmp_path, Manifest.read(tmp_path)) == []
    fold(tmp_path)
    assert losses.noted(tmp_path, Manifest.read(tmp_path)) == []
    with pytest.raises(TablesUnusable, match="nothing was lost"):
        manifest.files(tmp_path, "losses")


def test_a_table_whose_manifest_was_not_written_counts_nothing_twice(tmp_path, monkeypatch):
    commit(tmp_path, 0, sampled(5))
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "write", lambda self, root: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            fold(tmp_path)
    fold(tmp_path)
    assert losses.noted(tmp_path, Manifest.read(tmp_path)) == [sampled(5)]


def test_without_a_loss_there_is_no_table(tmp_path):
    commit(tmp_path, 0)
    fold(tmp_path)
    assert losses.noted(tmp_path, Manifest.read(tmp_path)) == []
    with pytest.raises(TablesUnusable, match="nothing was lost"):
        manifest.files(tmp_path, "losses")


def test_compacted_events_without_their_manifest_are_not_taken_for_leftovers(tmp_path):
    (tmp_path / "events" / "v00000001" / "day=2026-01-01").mkdir(parents=True)
    with pytest.raises(TablesUnusable, match=r"manifest.json is missing; restore it"):
        Manifest.read(tmp_path)


def test_a_marker_of_an_earlier_release_lacks_nothing(tmp_path):
    marker = tmp_path / "incoming" / "run" / "00000000" / COMMITTED
    marker.parent.mkdir(parents=True)
    marker.write_text(json.dumps({"rows": 1, "files": {}}), encoding="utf-8")
    assert losses.noted(tmp_path, Manifest()) == []
