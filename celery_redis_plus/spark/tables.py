"""The tables in Spark: reading them, and tracing messages in its tasks where there are too many for one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from celery_redis_plus.spark.checks import Problems, problems
from celery_redis_plus.spark.fold import Folded, Place, Written, fold, trace
from celery_redis_plus.spark.layers import EVENTS
from celery_redis_plus.spark.losses import LOSS_DDL
from celery_redis_plus.spark.manifest import TABLES, UNFINISHED, Manifest, event_files, files
from celery_redis_plus.spark.message_timelines import MESSAGE_DDL
from celery_redis_plus.spark.minute_aggregates import minute_ddl
from celery_redis_plus.spark.repartition import by_message, unpacked
from celery_redis_plus.spark.roots import NO_JAVA_READER, folder_of, of_task
from celery_redis_plus.spark.schema import EVENTS_DDL, arrow, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from celery_redis_plus.spark.storage import Storage

__all__ = ["aggregate", "files", "inspect", "read"]

_PROBLEMS = {"queue": "string", "problem": "string", "count": "bigint"}
_WRITTEN = {"table": "string", "date": "string", "file": "string", "news": "bigint"}


def read(spark: SparkSession, root: str | Path, table: str) -> DataFrame:
    """Return a table as it is now, in the columns of this release.

    Raises:
        TablesUnusable: `root` has no such table yet.
        InvalidArgument: `root` is a URL.
    """
    root = folder_of(root, NO_JAVA_READER)
    manifest = Manifest.read(root)
    schema = {"losses": LOSS_DDL, "messages": MESSAGE_DDL, "events": f"{EVENTS_DDL}, `date` date"}.get(table) or minute_ddl(table)
    if table == "losses":
        empty = not manifest.losses
    elif table == EVENTS:
        # They may all have been removed.
        empty = bool(manifest.folded) and not event_files(root, manifest)
    else:
        own = {**manifest.tables.get(table, {}), **(manifest.tables[UNFINISHED] if table == "messages" else {})}
        # Such as `workers` before the first delivery.
        empty = table in TABLES and bool(manifest.folded) and not own
    return spark.createDataFrame([], schema) if empty else spark.read.schema(schema).parquet(*files(root, table))


def aggregate(
    spark: SparkSession, root: str | Path | Storage, *, rebuild: bool = False, kept_s: float | None = None
) -> Folded:  # fmt: skip
    """Bring the tables up to date with `events`, as `fold` does, with Spark's tasks.

    Raises:
        TablesUnusable: as `fold`.
    """
    return fold(root, partial(_trace, spark), rebuild=rebuild, kept_s=kept_s)


def _trace(spark: SparkSession, files: Mapping[str, Sequence[str]], place: Place) -> Iterable[Written]:
    """Trace messages. The tasks write the files: to hand messages to Spark as rows took several times as long as all the rest."""
    packed = by_message(spark, of_task(place.root), files, spark.sparkContext.defaultParallelism)
    rows = packed.mapInArrow(partial(_trace_partition, place=place), ddl(_WRITTEN)).select(*_WRITTEN).collect()
    return [Written(**row.asDict()) for row in rows]


def inspect(spark: SparkSession, storage: Storage, files: Mapping[str, Sequence[str]]) -> Iterator[Problems]:
    """Count the problems of events as `checks.inspect_here` does, in Spark's tasks."""
    packed = by_message(spark, storage, files, spark.sparkContext.defaultParallelism)
    for row in packed.mapInArrow(_inspect_partition, ddl(_PROBLEMS)).select(*_PROBLEMS).collect():
        yield Counter({(row["queue"], row["problem"]): row["count"]})


def _inspect_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the problems of a partition that has all events of its messages."""
    found = problems(unpacked(batches))
    rows = [{"queue": queue, "problem": problem, "count": count} for (queue, problem), count in found.items()]
    yield from pa.Table.from_pylist(rows, schema=arrow(_PROBLEMS)).to_batches()


def _trace_partition(batches: Iterator[pa.RecordBatch], *, place: Place) -> Iterator[pa.RecordBatch]:
    """Trace the messages of a partition that has all events of its messages."""
    written = [asdict(file) for file in trace(unpacked(batches), place)]
    yield from pa.Table.from_pylist(written, schema=arrow(_WRITTEN)).to_batches()
