"""Makes rows of events: one per message, and counts and percentiles per minute by queue, task and worker."""

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

from celery_redis_plus.spark.gathering import unpacked
from celery_redis_plus.spark.minutes import MINUTE_DDL, PART, PART_DDL, PER_MINUTE, merged, parts
from celery_redis_plus.spark.stories import Stories

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Stands in the column `table` of a row that tells of a file of messages: its path, and how many messages it has.
WRITTEN = "messages"


def followed(gathered: DataFrame, staging: Path, dates: Collection[str]) -> DataFrame:
    """Follow the messages of `gathering.gathered`; return parts of their minutes (`PART`), and a row for each file of messages.

    The tasks write messages' files by themselves: to hand them to Spark as rows took several times as long as all the rest. A
    file is named after the attempt that wrote it, and counts only if the row of that attempt arrives.

    Args:
        gathered: all events of their messages.
        staging: the folder for the files.
        dates: days of publishing whose messages are written.
    """
    return gathered.mapInArrow(partial(_follow, staging=str(staging), dates=sorted(dates)), PART_DDL)


def minutes(followed: DataFrame) -> DataFrame:
    """Return the minutes of all tables: `table`, `key`, `minute`, counts and percentiles."""
    found = followed.where(sf.col("table") != WRITTEN).repartition("table", "key", "minute")
    return found.mapInArrow(merged, MINUTE_DDL)


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


def _follow(batches: Iterator[pa.RecordBatch], *, staging: str, dates: list[str]) -> Iterator[pa.RecordBatch]:
    """Follow the messages of a partition that has all events of its messages."""
    events = unpacked(batches)
    if not events.num_rows:
        return
    stories = Stories(events)
    yield from parts(stories.changes()).to_batches()
    messages = stories.messages()
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
    written["table"] = [WRITTEN] * count
    columns = [pa.array(written.get(field.name, [None] * count), field.type) for field in PART]
    yield from pa.table(columns, schema=PART).to_batches()
