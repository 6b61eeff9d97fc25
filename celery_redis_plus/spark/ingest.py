"""Streams events into the table `events` with Spark: each event once, whatever is killed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from celery_redis_plus.shards.event_logs import events_at
from celery_redis_plus.spark.checkpoint import Checkpoint
from celery_redis_plus.spark.folder import TablesFolder
from celery_redis_plus.spark.incoming import EVENTS_A_BATCH, Stored, store_batch
from celery_redis_plus.spark.loss_counter import LossCounter
from celery_redis_plus.spark.losses import Loss, noted
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.query_runner import run_query
from celery_redis_plus.spark.roots import NO_JAVA_WRITER, folder_of
from celery_redis_plus.spark.source_options import SourceOptions
from celery_redis_plus.spark.storage import INGEST_LOCK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

logger = logging.getLogger(__name__)

#: Events a task at least, where a micro-batch is divided among all of Spark's cores: each task makes a file.
EVENTS_A_TASK = 10_000


def start(
    spark: SparkSession,
    root: str | Path,
    source: Mapping[str, Any],
    *,
    once: bool = False,
    interval_s: float = 10.0,
    on_batch: Callable[[int, Stored], None] = lambda _batch, _stored: None,
    holds_lock: bool = False,
) -> StreamingQuery:
    """Begin to stream events into `root`, where the last run stopped.

    A micro-batch makes at most as many files a day as Spark has cores, however many queues there are.

    Args:
        spark: the session.
        root: the folder of tables; on a cluster, one that all nodes see under the same name.
        source: options of `celery_redis`.
        once: read what is there now, and stop.
        interval_s: seconds between micro-batches.
        on_batch: called with the number of each micro-batch and what it has, after each micro-batch.
        holds_lock: the caller keeps other ingests out of `root`; else each micro-batch does, while it is written.
    """
    storage = TablesFolder(folder_of(root, NO_JAVA_WRITER))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": EVENTS_A_BATCH, **source}
    share = -(-int(options["maxOffsetsPerTrigger"]) // spark.sparkContext.defaultParallelism)
    options.setdefault("maxRecordsPerPartition", max(share, EVENTS_A_TASK))
    frame = spark.readStream.format("celery_redis").options(**options).load()
    checkpoint = Checkpoint(storage.root / "checkpoint" / "events")
    parsed = SourceOptions.from_mapping(options)
    counter = LossCounter(storage, parsed, noted(storage, Manifest.read(storage)))
    log = events_at(parsed.resolved_url(), parsed.prefix, partial=True)

    def losses_of(files: list[str], number: int) -> list[Loss]:
        return counter.losses(log, files, checkpoint.offset(number - 1), checkpoint.offset(number) or {})

    def write(batch: DataFrame, number: int) -> None:
        with nullcontext() if holds_lock else storage.locked(INGEST_LOCK):
            stored = _store(batch, storage, checkpoint.run, number, losses_of)
        on_batch(number, stored)

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint.path))
    writer = writer.queryName("celery-redis-plus ingest")
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds").start()


def run_once(spark: SparkSession, root: str | Path, source: Mapping[str, Any]) -> None:
    """Store the events that are there now, as `start` does, and wait for that.

    Raises:
        StreamingQueryException: it failed, and not for a Python worker that a busy machine had started too late.
    """
    run_query(lambda: start(spark, root, source, once=True), threading.Event(), logger.warning, restarts=False)


def store(batch: DataFrame, root: str | Path, run: str, number: int) -> int:
    """Write a micro-batch, once; return how many events it has.

    Raises:
        TablesUnusable: another ingest writes into `root`; its files must not be taken for those of an attempt that died.
    """
    storage = TablesFolder(folder_of(root, NO_JAVA_WRITER))
    with storage.locked(INGEST_LOCK):
        return _store(batch, storage, run, number, lambda _files, _number: []).rows


def _store(
    batch: DataFrame, storage: TablesFolder, run: str, number: int, losses_of: Callable[[list[str], int], list[Loss]]
) -> Stored:  # fmt: skip
    dated = batch.withColumn("date", sf.to_date(sf.coalesce("published_at", "ts")))
    return store_batch(storage, run, number, lambda folder: write_by_day(dated, storage.root / folder), losses_of)


def write_by_day(rows: DataFrame, directory: Path) -> None:
    """Write `rows` into `directory`, one folder a `date`. The column stays in the files: they are read one by one."""
    rows.withColumn("day", sf.col("date")).write.partitionBy("day").parquet(str(directory))
