"""Makes rows of events: one per message, and counts and percentiles per minute by queue, task and worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from celery_redis_plus.spark.stories import MESSAGE, NEEDED, ROW_DDL, stories

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Relative error of percentiles is at most 1 in this.
PERCENTILE_ACCURACY = 10_000
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

#: Events that one task follows at once, in memory: about 100 MB.
EVENTS_A_TASK = 250_000


def changes(events: DataFrame, count: int, parallelism: int) -> DataFrame:
    """Return what `stories` makes of `events`, of which there are about `count`."""
    parts = max(parallelism, -(-count // EVENTS_A_TASK))
    return events.select(*NEEDED).repartition(parts, "queue", "id").mapInArrow(stories, ROW_DDL)


def messages(changed: DataFrame) -> DataFrame:
    """Return one row a message: what it was, what became of it, how long it waited and ran."""
    return changed.where("is_message").select(*MESSAGE)


def per_minute(changed: DataFrame, key: str) -> DataFrame:
    """Return counts and percentiles for each minute and each value of `key`: `queue`, `task` or `worker`."""
    event, reason = sf.col("event"), sf.coalesce(sf.col("reason"), sf.lit(""))
    acked = event == "acked"
    return (
        changed.where(~sf.col("is_message") & sf.col(key).isNotNull())
        .groupBy(key, sf.date_trunc("minute", "ts").alias("minute"))
        .agg(
            sf.count_if(event == "published").alias("published"),
            sf.count_if(event == "claimed").alias("delivered"),
            sf.count_if(acked & ~reason.isin("failure", "retry")).alias("acked"),
            sf.count_if((acked & (reason == "failure")) | (event == "rejected")).alias("failed"),
            sf.count_if((acked & (reason == "retry")) | (event == "retried")).alias("retried"),
            sf.count_if(event.isin("recovered", "requeued")).alias("requeued"),
            sf.count_if((event == "expired") | (reason == "expired")).alias("expired"),
            sf.count_if(event == "dead_lettered").alias("dead"),
            sf.count_if(event.isin("cancelled", "purged", "dropped", "vanished")).alias("removed"),
            sf.sum("ready_change").alias("backlog_change"),
            *_percentiles("wait_s"),
            *_percentiles("run_s"),
        )
        .withColumn("date", sf.to_date("minute"))
    )


def with_backlog(rows: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return the queues' minutes with `backlog`, the ready messages at each minute's end.

    Args:
        rows: of `per_minute(..., "queue")`.
        before: `queue` and `base`, the ready messages before the first of `rows`.
    """
    running = Window.partitionBy("queue").orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    total = sf.sum("backlog_change").over(running)
    if before is None:
        return rows.withColumn("backlog", total)
    joined = rows.join(sf.broadcast(before), "queue", "left")
    return joined.withColumn("backlog", total + sf.coalesce("base", sf.lit(0))).drop("base")


def _percentiles(column: str) -> list[Column]:
    name = column.removesuffix("_s")
    return [
        sf.percentile_approx(column, share, PERCENTILE_ACCURACY).alias(f"{name}_{label}_s")
        for label, share in PERCENTILES.items()
    ]
