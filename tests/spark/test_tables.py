"""Aggregated tables equal a plain-Python model of the same events, in any order and any batches."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from pyarrow import parquet

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark import ingest, tables
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.manifest import Manifest
from tests.spark.model import aggregate_in_python
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.streaming import finish

#: Begins ten minutes before midnight UTC, so that messages live on two days.
LATE_MS = START_MS + (8 * 3600 - 600) * 1000
KEYS = {"messages": ("queue", "id"), "queues": ("queue", "minute"), "tasks": ("task", "minute"), "workers": ("worker", "minute")}
LIVES = lives(3000, start_ms=LATE_MS, spacing_us=300_000)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "tables"


@pytest.fixture
def run_ingest(spark, root, broker_url):
    def run(**options):
        finish(lambda: ingest.start(spark, root, {"url": broker_url, **options}, once=True))

    return run


def same(found, wanted, tolerance=0.01):
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        for name, value in row.items():
            got = found[key][name]
            if isinstance(value, float):
                assert got == pytest.approx(value, rel=tolerance, abs=1e-6), (key, name)
            else:
                assert got == value, (key, name, got, value)


def aware(row):
    """Return the row with UTC times: Spark hands them to Python in the machine's zone, without saying so."""
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()}


def check(spark, root, events_by_queue):
    """Compare every table with the model."""
    model = aggregate_in_python(events_by_queue)
    for table, key in KEYS.items():
        rows = [aware(row.asDict()) for row in tables.read(spark, root, table).collect()]
        found = {tuple(row[name] for name in key): row for row in rows}
        assert len(found) == len(rows), f"{table} has a row twice"
        same(found, model[table])


def test_tables_equal_the_model_and_stay_so_when_events_come_in_portions(spark, root, run_ingest, redis_client):
    add_events(redis_client, "celery", LIVES[:4000])
    run_ingest()
    first = tables.aggregate(spark, root)
    check(spark, root, {"celery": LIVES[:4000]})

    add_events(redis_client, "celery", LIVES[4000:])
    add_events(redis_client, "mail", LIVES[:500])
    run_ingest()
    second = tables.aggregate(spark, root)

    check(spark, root, {"celery": LIVES, "mail": LIVES[:500]})
    assert len(second.dates) == 2
    assert second.version == first.version + 1
    assert tables.aggregate(spark, root).version == second.version, "nothing new: nothing is done"


def test_events_are_stored_once_although_a_batch_is_run_again(spark, root, run_ingest, redis_client):
    count = add_events(redis_client, "celery", LIVES[:2000])
    run_ingest()
    for commit in (root / "checkpoint" / "events" / "commits").iterdir():
        commit.unlink()

    run_ingest()

    assert tables.read(spark, root, "events").count() == count


def test_an_aggregation_that_died_leaves_the_tables_as_they_were(spark, root, run_ingest, redis_client, monkeypatch):
    add_events(redis_client, "celery", LIVES[:2000])
    run_ingest()
    tables.aggregate(spark, root)
    add_events(redis_client, "celery", LIVES[2000:])
    run_ingest()
    monkeypatch.setattr(Manifest, "write", lambda self, root: (_ for _ in ()).throw(RuntimeError("killed")))
    with pytest.raises(RuntimeError, match="killed"):
        tables.aggregate(spark, root)
    monkeypatch.undo()

    check(spark, root, {"celery": LIVES[:2000]})
    tables.aggregate(spark, root)
    check(spark, root, {"celery": LIVES})


def test_a_file_of_an_attempt_that_failed_does_not_count(spark, root, run_ingest, redis_client, monkeypatch):
    add_events(redis_client, "celery", LIVES[:500])
    run_ingest()
    by_message = tables.by_message

    def with_leftovers(*arguments):
        for table in ("messages", "partials"):
            leftover = root / table / "v00000001" / "day=2025-11-24" / "leftover.parquet"
            leftover.parent.mkdir(parents=True)
            leftover.write_bytes(b"half a file")
        return by_message(*arguments)

    monkeypatch.setattr(tables, "by_message", with_leftovers)
    tables.aggregate(spark, root)

    check(spark, root, {"celery": LIVES[:500]})
    tables.aggregate(spark, root)
    assert not list(root.rglob("leftover.parquet"))


def test_a_column_that_an_older_release_did_not_write_is_null_and_survives_a_compaction(spark, root, run_ingest, redis_client):
    add_events(redis_client, "celery", LIVES[:1000])
    run_ingest()
    for path in (root / "incoming").glob("*/00000000/*/*.parquet"):
        older = parquet.read_table(path).drop_columns(["priority"]).replace_schema_metadata(None)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        parquet.write_table(older, path)
    add_events(redis_client, "celery", LIVES[1000:2000])
    run_ingest()

    def known():
        return tables.read(spark, root, "events").where("priority is not null").count()

    wanted = sum(event.event == "published" for event in LIVES[1000:2000])
    assert known() == wanted
    tables.aggregate(spark, root)
    assert compact(root) != (0, 0)
    assert known() == wanted


def test_an_ingest_does_not_remove_the_files_of_another_one_that_writes_its_batch(
    spark, root, redis_client, broker_url, monkeypatch
):
    count = add_events(redis_client, "celery", LIVES[:300])
    batch = spark.read.format("celery_redis").options(url=broker_url).load()
    write, refused = ingest.write_by_day, []

    def write_beside_another(rows, directory):
        write(rows, directory)
        with pytest.raises(TablesUnusable, match="another ingest runs") as caught:
            ingest.store(batch, root, "run", 0)
        refused.append(caught)

    monkeypatch.setattr(ingest, "write_by_day", write_beside_another)

    assert ingest.store(batch, root, "run", 0) == count
    assert len(refused) == 1
    assert tables.read(spark, root, "events").count() == count
