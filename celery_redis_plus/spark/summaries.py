"""The figures of a report, each a small table: what happened in a period, by queue, task and worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pandas as pd
from pyspark.sql import functions as sf

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark.anomalies import Thresholds, anomalies
from celery_redis_plus.spark.losses import HARMLESS
from celery_redis_plus.spark.manifest import TABLES
from celery_redis_plus.spark.minute_aggregates import PERCENTILES
from celery_redis_plus.spark.seconds import LONGEST, by_second

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Relative error of a percentile's rank is at most 1 in this.
PERCENTILE_ACCURACY = 10_000
#: Rows of the lists of single messages.
MAX_LISTED_VALUES = 20


@dataclass(frozen=True)
class Period:
    """A stretch of time in UTC; None is an open end. It takes the messages *published* in it and the minutes in it."""

    start: datetime | None = None
    end: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> Period:
        """Return the period `FROM..TO`, each a date or a time in ISO 8601, or empty.

        Raises:
            InvalidArgument: it is something else, or empty.
        """
        start, dots, end = text.partition("..")
        try:
            period = cls(_moment(start), _moment(end))
        except ValueError:
            dots = ""
            period = cls()
        if not dots or (period.start and period.end and period.start >= period.end):
            raise InvalidArgument(f"period {text!r} is not allowed; allowed: FROM..TO such as 2026-01-31..2026-02-01T12:00")
        return period

    def holds(self, column: str) -> Column:
        """Return whether a time is in the period."""
        inside = sf.lit(True)
        if self.start:
            inside = inside & (sf.col(column) >= sf.lit(self.start))
        if self.end:
            inside = inside & (sf.col(column) < sf.lit(self.end))
        return inside

    def touches(self, start: str, end: str) -> Column:
        """Return whether a stretch of time, between two columns, has a part in the period; null is an open end."""
        touching = sf.lit(True)
        if self.start:
            touching = touching & sf.coalesce(sf.col(end) >= sf.lit(self.start), sf.lit(True))
        if self.end:
            touching = touching & sf.coalesce(sf.col(start) < sf.lit(self.end), sf.lit(True))
        return touching


def within(tables: Mapping[str, DataFrame], period: Period) -> dict[str, DataFrame]:
    """Return the tables' rows of a period."""
    return {name: tables[name].where(period.holds("published_at" if name == "messages" else "minute")) for name in TABLES}


def summaries(
    tables: Mapping[str, DataFrame],
    losses: DataFrame | None = None,
    events: DataFrame | None = None,
    *,
    period: Period,
    against: Period | None = None,
    thresholds: Thresholds | None = None,
) -> dict[str, pd.DataFrame]:
    """Return the report's figures by name.

    Args:
        tables: `messages`, `queues`, `tasks`, `workers`.
        losses: the table `losses`; None says nothing of them.
        events: the table `events`, for the seconds of a short period; None leaves them out.
        period: what is reported.
        against: another period, to compare with.
        thresholds: for the anomalies.
    """
    chosen = within(tables, period)
    messages = chosen["messages"]
    frames = {
        "states": messages.groupBy("state").count().orderBy(sf.desc("count")),
        "headline": _headline(messages, "this period"),
        "throughput": _throughput(chosen["queues"]),
        "backlog": _backlog(tables["queues"], period),
        "by_queue": _latency(messages, "queue"),
        "by_task": _latency(messages, "task"),
        "waits": chosen["queues"].select("queue", "minute", "wait_p50_s", "wait_p95_s").orderBy("minute"),
        "failures": _failures(messages),
        "slowest": _list(messages.where("run_s is not null"), "run_s"),
        "most_repeated": _list(messages.where("attempts > 1"), "attempts"),
        "dead_letters": messages.where("state = 'DEAD'").groupBy("queue", "task", "reason").count().orderBy(sf.desc("count")),
        "workers": _workers(chosen["workers"]),
        "lateness": _lateness(messages),
        "anomalies": anomalies(chosen, thresholds),
    }
    frames["incomplete"] = messages.where("not complete").groupBy("queue").count().orderBy(sf.desc("count"))
    if losses is not None:
        lost = ~sf.col("why").isin(*HARMLESS)
        frames["losses"] = losses.where(lost & period.touches("from_at", "to_at")).orderBy("noted_at", "queue", "why")
    if against is not None:
        others = within(tables, against)["messages"]
        frames["comparison"] = _comparison(messages, others)
        frames["headline"] = frames["headline"].unionByName(_headline(others, "other period"))
    bounds = _bounds(tables["queues"], period).toPandas()
    start, end = bounds.loc[0, ["start", "end"]]
    if events is not None and start < end <= start + LONGEST:
        seconds = by_second(events, tables["messages"], tables["queues"], start, end)
        shown = seconds.where(sf.col("minute") >= sf.lit(start.tz_localize("UTC").to_pydatetime()))
        frames["throughput_by_second"] = _throughput(shown)
        frames["backlog_by_second"] = seconds.select("queue", "minute", "backlog").unionByName(_before(tables["queues"], start))
        frames["waits_by_second"] = shown.select("queue", "minute", "wait_p50_s", "wait_p95_s")
    return {name: frame.toPandas() for name, frame in frames.items()} | {"period": bounds}


def _headline(messages: DataFrame, name: str) -> DataFrame:
    """Return the figures that one wants to see first, in a row."""
    figures = [
        sf.count("*").alias("published"),
        *(sf.count_if(sf.col("state") == state).alias(state.lower()) for state in ("COMPLETED", "RETRIED", "FAILED", "DEAD")),
        *(
            sf.percentile_approx(f"{column}_s", PERCENTILES[label], PERCENTILE_ACCURACY).alias(f"{column}_{label}_s")
            for column in ("wait", "run")
            for label in ("p50", "p95")
        ),
    ]
    return messages.agg(*figures).select(sf.lit(name).alias("period"), "*")


def _bounds(queues: DataFrame, period: Period) -> DataFrame:
    """Return the start and the end of what the charts draw: of the period, without the time of which there are no tables."""
    start, end = sf.min("minute"), sf.max("minute") + sf.expr("interval 1 minute")
    if period.start:
        start = sf.greatest(start, sf.lit(period.start))
    if period.end:
        end = sf.least(end, sf.lit(period.end))
    return queues.agg(start.alias("start"), end.alias("end"))


def _backlog(queues: DataFrame, period: Period) -> DataFrame:
    """Return the backlogs in a period, and what each queue had before it: it stays until the queue's next event."""
    columns = ("queue", "minute", "backlog")
    found = queues.where(period.holds("minute")).select(*columns)
    if period.start:
        found = found.unionByName(_before(queues, pd.Timestamp(period.start).tz_convert(None)))
    return found.orderBy("minute")


def _before(queues: DataFrame, start: pd.Timestamp) -> DataFrame:
    """Return the last backlog of each queue before a minute."""
    minute = sf.lit(start.floor("min").tz_localize("UTC").to_pydatetime())
    earlier = queues.where(sf.col("minute") < minute).groupBy("queue")
    last = earlier.agg(sf.max("minute").alias("minute"), sf.max_by("backlog", "minute").alias("backlog"))
    return last.select("queue", "minute", "backlog")


def _throughput(queues: DataFrame) -> DataFrame:
    counted = ("published", "delivered", "acked", "failed", "retried", "expired", "dead")
    return queues.groupBy("minute").agg(*(sf.sum(name).alias(name) for name in counted)).orderBy("minute")


def _latency(messages: DataFrame, key: str) -> DataFrame:
    return (
        messages.where(sf.col(key).isNotNull())
        .groupBy(key)
        .agg(
            sf.count("*").alias("messages"), *_shares(), *_percentiles("wait_s"), *_percentiles("run_s"), *_percentiles("total_s")
        )
        .orderBy(sf.desc("messages"))
    )


def _shares() -> list[Column]:
    return [
        sf.count_if(sf.col("state") == "COMPLETED").alias("completed"),
        sf.count_if(sf.col("state") == "FAILED").alias("failed"),
        sf.count_if(sf.col("state") == "DEAD").alias("dead"),
        sf.sum(sf.greatest(sf.col("attempts") - 1, sf.lit(0))).alias("redeliveries"),
    ]


def _percentiles(column: str) -> list[Column]:
    name = column.removesuffix("_s")
    return [
        sf.percentile_approx(column, share, PERCENTILE_ACCURACY).alias(f"{name}_{label}_s")
        for label, share in PERCENTILES.items()
    ]


def _failures(messages: DataFrame) -> DataFrame:
    """Failures and retries by task and reason."""
    bad = messages.where(sf.col("state").isin("FAILED", "DEAD", "RETRIED", "RETRYABLE"))
    why = sf.coalesce("reason", "last_event").alias("reason")
    # Messages differ from failure to failure.
    error = sf.substring_index("error", ": ", 1).alias("error")
    return bad.groupBy("task", "state", why, error).count().orderBy(sf.desc("count"))


def _list(messages: DataFrame, by: str) -> DataFrame:
    columns = ("task", "queue", "task_id", "id", "state", "attempts", "wait_s", "run_s", "worker", "published_at")
    return messages.orderBy(sf.desc(by), "id").limit(MAX_LISTED_VALUES).select(*columns)


def _workers(workers: DataFrame) -> DataFrame:
    counted = ("delivered", "acked", "failed", "retried", "requeued", "dead")
    return workers.groupBy("worker").agg(*(sf.sum(name).alias(name) for name in counted)).orderBy(sf.desc("delivered"))


def _lateness(messages: DataFrame) -> DataFrame:
    """How long after their eta messages were first delivered, by queue."""
    timed = messages.where("eta is not null and late_s is not null")
    return timed.groupBy("queue").agg(
        sf.count("*").alias("messages"), *_percentiles("late_s"), sf.max("late_s").alias("late_max_s")
    )


def _comparison(messages: DataFrame, others: DataFrame) -> DataFrame:
    """Tasks of two periods side by side: number, share that failed, and 95th percentiles."""

    def side(frame: DataFrame, suffix: str) -> DataFrame:
        bad = sf.count_if(sf.col("state").isin("FAILED", "DEAD")) / sf.count("*")
        figures = (
            sf.count("*").alias(f"messages{suffix}"),
            bad.alias(f"failed_share{suffix}"),
            *(
                sf.percentile_approx(f"{name}_s", 0.95, PERCENTILE_ACCURACY).alias(f"{name}_p95_s{suffix}")
                for name in ("wait", "run")
            ),
        )
        return frame.where(sf.col("task").isNotNull()).groupBy("task").agg(*figures)

    joined = side(messages, "").join(side(others, "_before"), "task", "full")
    for name in ("failed_share", "wait_p95_s", "run_p95_s"):
        joined = joined.withColumn(f"{name}_change", sf.col(name) - sf.col(f"{name}_before"))
    return joined.orderBy("task")


def _moment(text: str) -> datetime | None:
    if not text.strip():
        return None
    parsed = datetime.fromisoformat(text.strip())
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
