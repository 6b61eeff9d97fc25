"""Rows become tasks that a real worker runs, each once: Spark tasks fail, batches are replayed, driver and JVM are killed."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import functions as sf

from celery_redis_plus.keys import Keys
from tests.support.spark_jobs import BOTH, DRIVER, JVM
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).with_name("sink_program.py")
FILES = 10


def notes(redis_client):
    """Return how often the task of each row ran."""
    return Counter(note.decode().split(" ")[0] for note in redis_client.lrange("notes", 0, -1))


def run_all(start_worker, broker_url, redis_client, rows):
    """Run what waits; return how often the task of each row ran."""
    start_worker("tests.spark.worker_app", broker=broker_url, pool="prefork", concurrency=2)
    wait_until(lambda: redis_client.llen("notes") >= rows and not redis_client.zcard(Keys().queue("celery").ready), 1200)
    return notes(redis_client)


def test_rows_are_executed_once_although_tasks_fail_and_a_batch_is_replayed(  # noqa: PLR0917 - fixtures
    spark, start_worker, broker_url, redis_client, tmp_path, full, figures
):
    rows = 50_000 if full else 4_000
    marks = tmp_path / "failed"
    marks.mkdir()
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    spark.range(rows).select("id", sf.array(sf.lit(broker_url), sf.concat(sf.lit("row:"), "id")).alias("args")).repartition(
        FILES
    ).write.parquet(str(source))

    def fail_once_a_partition(batches):
        from pyspark import TaskContext

        mark = marks / str(TaskContext.get().partitionId())
        for number, batch in enumerate(batches):
            yield batch
            if number == 2 and not mark.exists():
                mark.touch()
                raise RuntimeError("this Spark task fails in the middle")

    def write():
        stream = spark.readStream.schema("id bigint, args array<string>").option("maxFilesPerTrigger", 2).parquet(str(source))
        stream.mapInPandas(fail_once_a_partition, "id bigint, args array<string>").writeStream.format("celery_task").option(
            "url", broker_url
        ).option("task", "tests.spark.worker_app.note").option("idColumn", "id").option("argsColumn", "args").option(
            "checkpointLocation", str(checkpoint)
        ).trigger(availableNow=True).start().awaitTermination()

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        write()
        newest = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        (checkpoint / "commits" / str(newest)).unlink()
        (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
        write()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert list(marks.iterdir())
    assert (checkpoint / "commits" / str(newest)).exists(), "the batch was not replayed"
    ran = run_all(start_worker, broker_url, redis_client, rows)
    assert len(ran) == rows
    assert set(ran.values()) == {1}
    figures(
        f"{rows:,} rows, {len(list(marks.iterdir()))} injected failures, batch {newest} replayed: {len(ran):,} tasks, once each"
    )


def test_a_killed_sink_sends_each_row_once(  # noqa: PLR0917 - fixtures
    start, start_worker, broker_url, redis_client, tmp_path, full, figures
):
    """In its full form on two executors, where Spark begins slow tasks a second time."""
    rows, kills, master = (100_000, 5, "local-cluster[2,1,1024]") if full else (3_000, 2, "local[2,4]")
    source, marks = tmp_path / "rows", tmp_path / "marks"
    source.mkdir()
    marks.mkdir()
    for number in range(FILES):
        ids = range(number, rows, FILES)
        table = {"id": list(ids), "args": [[broker_url, f"row:{i}"] for i in ids], "rank": [i % 10 for i in ids]}
        schema = pa.schema([("id", pa.int64()), ("args", pa.list_(pa.string())), ("rank", pa.int32())])
        parquet.write_table(pa.table(table, schema=schema), source / f"{number}.parquet")
    key = Keys().queue("celery").ready
    command = (sys.executable, "-P", str(PROGRAM), broker_url, str(source), str(tmp_path / "checkpoint"), master, str(marks))

    cut = 0
    for _ in range(kills):
        before = redis_client.zcard(key)
        job = start(*command)
        job.until(lambda before=before: redis_client.zcard(key) > before)
        time.sleep(random.uniform(0, 1))
        cut += job.kill(random.choice((DRIVER, JVM, BOTH)))
    before, used = redis_client.zcard(key), redis_client.info("cpu")
    job = start(*command)
    began = wait_until(lambda: redis_client.zcard(key) > before and time.monotonic(), 300)
    job.wait()
    took_s, sent = time.monotonic() - began, redis_client.zcard(key) - before

    assert redis_client.zcard(key) == rows
    spent = sum(redis_client.info("cpu")[name] - used[name] for name in ("used_cpu_sys", "used_cpu_user"))
    attempts = Counter(mark.name.rpartition(".")[0] for mark in marks.iterdir())
    twice = sum(count > 1 for count in attempts.values())
    assert twice
    ran = run_all(start_worker, broker_url, redis_client, rows)
    assert len(ran) == rows
    assert set(ran.values()) == {1}
    figures(
        f"{cut} kills in the middle, {twice} of {len(attempts)} Spark tasks begun more than once: {rows:,} rows, {len(ran):,} "
        f"tasks, once each; {sent:,} rows at the end in {took_s:.0f} s, {spent / max(1, sent) * 1e6:.0f} µs of server CPU a row"
    )
