"""How events reach the tasks that aggregate them: the bucket of each file, and what a file's footer says."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyarrow as pa
from pyarrow import parquet

from celery_redis_plus.spark import repartition
from celery_redis_plus.spark.manifest import MIXED
from celery_redis_plus.spark.repartition import (
    EVENTS_A_TASK,
    EVENTS_SCHEMA,
    FileShare,
    _pack,
    file_shares_of,
    newest_of,
    unpacked,
)
from celery_redis_plus.spark.roots import opened

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def stored(tmp_path):
    def store(times, name="events.parquet", **columns):
        count = len(times)
        given = {"ts": times, "id": [f"{number:08}.1" for number in range(count)], "queue": ["celery"] * count} | columns
        table = pa.table({key: pa.array(values, EVENTS_SCHEMA.field(key).type) for key, values in given.items()})
        parquet.write_table(table, tmp_path / name)
        return name

    return store


def test_small_days_share_a_task_and_a_big_day_has_several():
    days = {f"2026-01-{number:02}": [f"{number}"] for number in range(1, 5)}
    rows = dict(zip(days, (10, 20, 3 * EVENTS_A_TASK, 5), strict=True))

    file_shares, tasks = file_shares_of("tables", days, rows, parallelism=2)

    small, also_small, big, last = file_shares
    assert (small.first, small.buckets) == (also_small.first, also_small.buckets) == (0, 1)
    assert big.first == 1
    assert rows["2026-01-03"] / big.buckets <= EVENTS_A_TASK
    assert last.first == 1 + big.buckets
    assert tasks == last.first + 1


def test_many_events_of_small_days_that_share_files_have_several_tasks(stored, tmp_path, monkeypatch):
    """A year of a small application, of which all days share files, is no one task's."""
    monkeypatch.setattr(repartition, "EVENTS_A_TASK", 300)
    dates = [date(2026, 1, 1) + timedelta(days=number % 200) for number in range(1000)]
    ids = [f"{number % 400:08}.1" for number in range(1000)]
    mixed = [stored([NOON] * 1000, name, id=ids, date=dates) for name in ("a", "b")]
    first_day = stored([NOON] * 200, id=[f"{number % 2 * 200:08}.1" for number in range(200)], date=[dates[0]] * 200)
    files = {MIXED: mixed, "2026-01-01": [first_day]}

    partitions = list(repartition.in_this_process(opened(tmp_path), files))

    found = [set(part.column("id").to_pylist()) for part in partitions]
    assert sum(part.num_rows for part in partitions) == 2200
    assert len(partitions) >= 2000 / 300
    assert sum(map(len, found)) == len(set.union(*found)) == 400
    assert max(part.num_rows for part in partitions) < 2 * 300 + 200


def test_all_events_of_a_message_go_to_one_bucket_and_none_is_lost(stored, tmp_path):
    ids = [f"{number % 100:08}.1" for number in range(1000)]
    files = [stored([NOON] * 1000, name, id=ids, n=list(range(1000))) for name in ("a", "b")]
    shares = [[FileShare(str(tmp_path), file, 3, 4)] for file in files]

    packed = list(_pack(iter([pa.record_batch({"id": [0, 1]})]), shares=shares))

    owners: dict[str, set[int]] = {}
    rows = 0
    for bucket in (3, 4, 5, 6):
        events = unpacked([batch.filter(pa.compute.equal(batch.column("bucket"), bucket)) for batch in packed])
        rows += events.num_rows
        for message in events.column("id").to_pylist():
            owners.setdefault(message, set()).add(bucket)
    assert rows == 2000
    assert len(owners) == 100
    assert all(len(buckets) == 1 for buckets in owners.values())
    assert set.union(*owners.values()) == {3, 4, 5, 6}


def test_a_column_that_an_older_release_did_not_write_is_null(stored, tmp_path):
    file = stored([NOON])

    packed = _pack(iter([pa.record_batch({"id": [0]})]), shares=[[FileShare(str(tmp_path), file, 0, 1)]])

    assert unpacked(packed).select(["id", "task", "worker"]).to_pylist() == [{"id": "00000000.1", "task": None, "worker": None}]


def test_the_newest_event_is_found_in_footers(tmp_path):
    def file(name, *days, statistics=True):
        table = pa.table({"ts": pa.array([NOON + timedelta(days=day) for day in days], EVENTS_SCHEMA.field("ts").type)})
        parquet.write_table(table, tmp_path / name, write_statistics=statistics)
        return name

    storage = opened(tmp_path)
    assert newest_of(storage, [file("one", 0, 3), file("two", 1)]) == int((NOON + timedelta(days=3)).timestamp()) * 1_000_000
    assert newest_of(storage, [file("bare", 5, statistics=False)]) == 0


def test_this_process_makes_the_same_partitions(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(repartition, "EVENTS_A_TASK", 300)
    file = stored([NOON] * 1000, id=[f"{number % 100:08}.1" for number in range(1000)], n=list(range(1000)))
    partitions = list(repartition.in_this_process(opened(tmp_path), {"2026-01-01": [file]}))
    ids = [set(part.column("id").to_pylist()) for part in partitions]
    assert sum(part.num_rows for part in partitions) == 1000
    assert len(partitions) == 4
    assert sum(map(len, ids)) == len(set.union(*ids)) == 100
