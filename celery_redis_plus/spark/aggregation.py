"""Turns events into rows: one per message, and counts and percentiles per minute by queue, task and worker."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import Window
from pyspark.sql import functions as sf

from celery_redis_plus.spark.message_timelines import MessageTimelines
from celery_redis_plus.spark.minute_aggregates import (
    MINUTE_DDL,
    PARTIAL_MINUTE,
    PARTIAL_MINUTE_DDL,
    PER_MINUTE,
    combined,
    partial_minutes,
)
from celery_redis_plus.spark.repartition import unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Value of the column `table` in a row about a file of messages: its path, and how many messages it has.
FILE_ROW = "messages"


def traced(by_message: DataFrame, staging: Path, dates: Collection[str]) -> DataFrame:
    """Trace the messages of `repartition.by_message`; return their partial minutes, and a row for each file of messages.

    The tasks write the messages' files themselves: to hand them to Spark as rows took several times as long as all the rest. A
    file is named after the attempt that wrote it, and counts only if the row of that attempt arrives.

    Args:
        by_message: all events of their messages.
        staging: the folder for the files.
        dates: days of publishing whose messages are written.
    """
    return by_message.mapInArrow(partial(_trace, staging=str(staging), dates=sorted(dates)), PARTIAL_MINUTE_DDL)


def minutes(traced: DataFrame) -> DataFrame:
    """Return the minutes of all tables: `table`, `key`, `minute`, counts and percentiles."""
    found = traced.where(sf.col("table") != FILE_ROW).repartition("table", "key", "minute")
    return found.mapInArrow(combined, MINUTE_DDL)


def per_minute(minutes: DataFrame, table: str) -> DataFrame:
    """Return the rows of `queues`, `tasks` or `workers`."""
    own = minutes.where(sf.col("table") == table).drop("table").withColumnRenamed("key", PER_MINUTE[table])
    return own.withColumn("date", sf.to_date("minute"))


def with_backlog(rows: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return the queues' minutes with `backlog`, the ready messages at each minute's end.

    Args:
        rows: of `per_minute(..., "queues")`.
        before: `queue` and `base`, the ready messages before the first of `rows`.
    """
    running = Window.partitionBy("queue").orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    total = sf.sum("backlog_change").over(running)
    if before is None:
        return rows.withColumn("backlog", total)
    joined = rows.join(sf.broadcast(before), "queue", "left")
    return joined.withColumn("backlog", total + sf.coalesce("base", sf.lit(0))).drop("base")


def _trace(batches: Iterator[pa.RecordBatch], *, staging: str, dates: list[str]) -> Iterator[pa.RecordBatch]:
    """Trace the messages of a partition that has all events of its messages."""
    events = unpacked(batches)
    if not events.num_rows:
        return
    timelines = MessageTimelines(events)
    yield from partial_minutes(timelines.changes()).to_batches()
    messages = timelines.messages()
    attempt = uuid.uuid4().hex
    written: dict[str, list[object]] = {"key": [], "published": []}
    for day in dates:
        rows = messages.filter(pc.equal(messages.column("date"), pa.scalar(day).cast(pa.date32())))
        if rows.num_rows:
            path = Path(staging, f"day={day}", f"{attempt}.parquet")
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(rows, path)
            written["key"].append(f"{path.parent.name}/{path.name}")
            written["published"].append(rows.num_rows)
    count = len(written["key"])
    written["table"] = [FILE_ROW] * count
    columns = [pa.array(written.get(field.name, [None] * count), field.type) for field in PARTIAL_MINUTE]
    yield from pa.table(columns, schema=PARTIAL_MINUTE).to_batches()
