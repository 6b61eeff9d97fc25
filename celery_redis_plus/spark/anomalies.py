"""What deserves a look: plain comparisons, each with the figures that it was judged by. Thresholds are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import Window
from pyspark.sql import functions as sf

from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Thresholds:
    """When a figure is worth telling.

    Attributes:
        wait_factor: a queue's wait in the last quarter of the period against the time before.
        wait_least_s: shorter waits are never told, seconds.
        retry_share: retries per delivery of a task within an hour.
        retry_least: fewer retries are never told.
        failure_factor: a worker's failures per delivery against all workers'.
        failure_sigmas: and how far beyond chance (of the binomial distribution) that must be.
        failure_least: fewer deliveries are never judged.
        poison_attempts: deliveries after which an unfinished or dead message is a candidate.
    """

    wait_factor: float = 2.0
    wait_least_s: float = 1.0
    retry_share: float = 0.3
    retry_least: int = 20
    failure_factor: float = 2.0
    failure_sigmas: float = 3.0
    failure_least: int = 20
    poison_attempts: int = 3

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Return the thresholds that a command line was given, by their names here.

        Raises:
            InvalidArgument: a name is unknown, or a value is no number.
        """
        known: dict[str, Any] = {threshold.name: type(threshold.default) for threshold in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in given.items():
            if name not in known:
                raise InvalidArgument(f"there is no threshold {name!r}; thresholds: {', '.join(known)}")
            try:
                values[name] = known[name](text)
            except ValueError:
                raise InvalidArgument(f"threshold {name}: {text!r} is not allowed; allowed: a number") from None
        return cls(**values)


def anomalies(tables: dict[str, DataFrame], thresholds: Thresholds | None = None) -> DataFrame:
    """Return all findings in `tables` (`messages`, `queues`, `tasks`, `workers`), one row each.

    `value` is what was seen, `usual` what it was compared with, `count` on how many events that rests.
    """
    limits = thresholds or Thresholds()
    return (
        rising_waits(tables["queues"], limits)
        .unionByName(retry_storms(tables["tasks"], limits))
        .unionByName(failing_workers(tables["workers"], limits))
        .unionByName(poison_candidates(tables["messages"], limits))
        .orderBy("kind", sf.desc("value"))
    )


def rising_waits(queues: DataFrame, limits: Thresholds) -> DataFrame:
    """Queues whose median wait in the last quarter of the time is `wait_factor` times that of the time before."""
    everything = Window.partitionBy()
    begin, end = sf.min("minute").over(everything), sf.max("minute").over(everything)
    last_quarter = sf.unix_seconds("minute") > sf.unix_seconds(end) - (sf.unix_seconds(end) - sf.unix_seconds(begin)) / 4
    waits = (
        queues.withColumn("recent", last_quarter)
        .where(sf.col("wait_p50_s").isNotNull())
        .groupBy("queue")
        .agg(
            sf.median(sf.when(sf.col("recent"), sf.col("wait_p50_s"))).alias("value"),
            sf.median(sf.when(~sf.col("recent"), sf.col("wait_p50_s"))).alias("usual"),
            sf.sum(sf.when(sf.col("recent"), sf.col("delivered"))).alias("count"),
            sf.min(sf.when(sf.col("recent"), sf.col("minute"))).alias("since"),
        )
    )
    found = waits.where((sf.col("value") >= limits.wait_least_s) & (sf.col("value") >= limits.wait_factor * sf.col("usual")))
    return _finding(found, "wait time rises", sf.col("queue"))


def retry_storms(tasks: DataFrame, limits: Thresholds) -> DataFrame:
    """Tasks that were retried more often than `retry_share` of their deliveries within an hour; the worst hour of each."""
    hourly = (
        tasks.groupBy("task", sf.date_trunc("hour", "minute").alias("since"))
        .agg(sf.sum("retried").alias("count"), sf.sum("delivered").alias("delivered"))
        .withColumn("value", sf.col("count") / sf.greatest("delivered", sf.lit(1)))
    )
    worst = Window.partitionBy("task").orderBy(sf.desc("value"))
    found = (
        hourly.where((sf.col("count") >= limits.retry_least) & (sf.col("value") >= limits.retry_share))
        .withColumn("rank", sf.row_number().over(worst))
        .where("rank = 1")
        .withColumn("usual", sf.lit(limits.retry_share))
    )
    return _finding(found, "retry storm", sf.col("task"))


def failing_workers(workers: DataFrame, limits: Thresholds) -> DataFrame:
    """Workers that fail `failure_factor` times as often as all, by more than chance explains."""
    each = workers.groupBy("worker").agg(
        sf.sum("delivered").alias("count"),
        sf.sum(sf.col("failed") + sf.col("dead")).alias("failures"),
        sf.min("minute").alias("since"),
    )
    everything = Window.partitionBy()
    usual = sf.sum("failures").over(everything) / sf.greatest(sf.sum("count").over(everything), sf.lit(1))
    judged = each.withColumn("usual", usual).withColumn("value", sf.col("failures") / sf.greatest("count", sf.lit(1)))
    sigma = sf.sqrt(sf.col("usual") * (1 - sf.col("usual")) / sf.col("count"))
    found = judged.where(
        (sf.col("count") >= limits.failure_least)
        & (sf.col("value") >= limits.failure_factor * sf.col("usual"))
        & (sf.col("value") - sf.col("usual") >= limits.failure_sigmas * sigma)
    )
    return _finding(found, "worker fails often", sf.col("worker"))


def poison_candidates(messages: DataFrame, limits: Thresholds) -> DataFrame:
    """Messages that were delivered `poison_attempts` times or more and are dead or still not done."""
    found = (
        messages.where((sf.col("attempts") >= limits.poison_attempts) & ~sf.col("state").isin("COMPLETED", "RETRIED", "MOVED"))
        .withColumn("value", sf.col("attempts").cast("double"))
        .withColumn("usual", sf.lit(1.0))
        .withColumn("count", sf.col("attempts").cast("long"))
        .withColumn("since", sf.col("first_delivery"))
    )
    return _finding(found, "poison candidate", sf.concat_ws(" ", "task", sf.coalesce("task_id", "id"), sf.lit("in"), "queue"))


def _finding(found: DataFrame, kind: str, subject: Column) -> DataFrame:
    return found.select(
        sf.lit(kind).alias("kind"),
        subject.alias("subject"),
        sf.col("value").cast("double").alias("value"),
        sf.col("usual").cast("double").alias("usual"),
        sf.col("count").cast("long").alias("count"),
        sf.col("since").alias("since"),
    )
