"""Counts the events of a short period by the second: what the tables per minute cannot show.

Only the messages that had events in the period are traced, from their first event on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as sf

from celery_redis_plus.spark.arrow_columns import as_table
from celery_redis_plus.spark.message_timelines import EVENT_COLUMNS_READ, MessageTimelines
from celery_redis_plus.spark.minute_aggregates import MINUTE_DDL, PARTIAL_MINUTE_DDL, SECOND_US, combined, partial_minutes
from celery_redis_plus.spark.repartition import EVENTS_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Longer periods are shown by the minute.
LONGEST = pd.Timedelta(minutes=15)


def by_second(
    events: DataFrame, messages: DataFrame, queues: DataFrame, start: pd.Timestamp, end: pd.Timestamp
) -> DataFrame:  # fmt: skip
    """Return rows of the table `queues` for each second between `start` and `end` (UTC, without a zone) that has events.

    The column `minute` is the second.
    """
    # The backlog is known at the end of a minute.
    begin = sf.lit(start.floor("min").tz_localize("UTC").to_pydatetime())
    until = sf.lit(end.tz_localize("UTC").to_pydatetime())
    touching = messages.where((sf.col("last_at") >= begin) & sf.coalesce(sf.col("published_at") < until, sf.lit(True)))
    wanted = touching.select("date", "queue", "id").cache()
    try:
        days = wanted.agg(sf.min("date").alias("first"), sf.max("date").alias("last")).collect()[0]
    finally:
        wanted.unpersist()
    # Each file of events has one day: Spark skips the others.
    near = events.where(sf.col("date").between(sf.lit(days["first"]), sf.lit(days["last"])))
    traced = (
        near.join(wanted, ["date", "queue", "id"], "left_semi")
        .select(*EVENT_COLUMNS_READ)
        .repartition("queue", "id")
        .mapInArrow(_trace, PARTIAL_MINUTE_DDL)
    )
    seconds = traced.where(sf.col("minute") >= begin).repartition("table", "key", "minute")
    counted = seconds.mapInArrow(partial(combined, step_us=SECOND_US), MINUTE_DDL).where("table = 'queues'")
    rows = counted.drop("table").withColumnRenamed("key", "queue")
    before = queues.where(sf.col("minute") < begin).groupBy("queue").agg(sf.sum("backlog_change").alias("base"))
    running = Window.partitionBy("queue").orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    backlog = sf.sum("backlog_change").over(running) + sf.coalesce("base", sf.lit(0))
    joined = rows.join(sf.broadcast(before), "queue", "left")
    return joined.withColumn("backlog", backlog).drop("base").where(sf.col("minute") < until)


def _trace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    read = [batch for batch in batches if batch.num_rows]
    if read:
        table = pa.Table.from_batches(read)
        events = as_table({name: table.column(name) for name in EVENTS_SCHEMA.names}, EVENTS_SCHEMA)
        yield from partial_minutes(MessageTimelines(events).changes(), SECOND_US).to_batches()
