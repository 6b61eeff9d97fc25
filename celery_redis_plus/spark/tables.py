"""The tables: aggregating events into them, and reading them.

Only days that changed are aggregated: the days of publishing with events since the last run, and the days on which those
messages had events. New directories are written beside the old ones, and count when the manifest is replaced.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as sf

from celery_redis_plus.spark import aggregation, losses
from celery_redis_plus.spark.ingest import read_events, write_by_day
from celery_redis_plus.spark.manifest import Manifest, files, folder, locked, remove_unreferenced, sources
from celery_redis_plus.spark.message_timelines import MESSAGE_DDL
from celery_redis_plus.spark.minute_aggregates import MINUTE_DDL, PER_MINUTE
from celery_redis_plus.spark.repartition import by_message, days_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Aggregated", "aggregate", "files", "read"]


@dataclass(frozen=True)
class Aggregated:
    """Result of an aggregation.

    Attributes:
        version: of the manifest.
        dates: days of publishing whose messages were aggregated.
        days: days of the per-minute tables that were rebuilt.
        messages: rows written to `messages`.
    """

    version: int
    dates: tuple[str, ...] = ()
    days: tuple[str, ...] = ()
    messages: int = 0


def read(spark: SparkSession, root: str | Path, table: str) -> DataFrame:
    """Return a table as it is now.

    Raises:
        TablesUnusable: `root` has no such table yet.
    """
    root = folder(root)
    manifest = Manifest.read(root)
    if table in manifest.tables and manifest.aggregated and not manifest.tables[table]:
        return _empty(spark, table)
    if table == "losses":
        schema = f"{losses.LOSS_DDL}"
        return spark.read.schema(schema).parquet(*files(root, table)) if manifest.losses else spark.createDataFrame([], schema)
    if table == "events":
        return read_events(spark, files(root, table))
    return spark.read.parquet(*files(root, table))


def _empty(spark: SparkSession, table: str) -> DataFrame:
    """Return a table without rows, such as `workers` before the first delivery."""
    if table == "messages":
        return spark.createDataFrame([], MESSAGE_DDL)
    minutes = aggregation.per_minute(spark.createDataFrame([], MINUTE_DDL), table)
    return aggregation.with_backlog(minutes, None) if table == "queues" else minutes


def aggregate(spark: SparkSession, root: str | Path, *, rebuild: bool = False) -> Aggregated:
    """Bring `messages`, `queues`, `tasks` and `workers` up to date with `events`; return what was done.

    Killed at any moment, the tables are as they were before or as they are after; run it again.

    Args:
        spark: the session.
        root: the folder of tables.
        rebuild: rebuild all of them.

    Raises:
        TablesUnusable: another aggregation or compaction runs there, or a later release has been.
    """
    root = folder(root)
    with locked(root):
        old = Manifest.read(root)
        remove_unreferenced(root, old)
        old = losses.collect(root, old)
        found = sources(root, old)
        touched = sorted(date for date, by_source in found.items() if rebuild or sorted(by_source) != old.aggregated.get(date))
        if not touched:
            return Aggregated(old.version)
        return _Aggregation(spark, root, old, found, touched).run()


class _Aggregation:
    """One aggregation, from the manifest `old` to the next."""

    def __init__(
        self, spark: SparkSession, root: Path, old: Manifest, found: dict[str, dict[str, list[str]]], touched: list[str]
    ) -> None:
        self.spark = spark
        self.root = root
        self.old = old
        self.found = found
        self.touched = touched
        self.new = replace(
            old,
            version=old.version + 1,
            aggregated=old.aggregated | {date: sorted(found[date]) for date in touched},
            days=dict(old.days),
            tables={table: dict(dates) for table, dates in old.tables.items()},
        )

    def run(self) -> Aggregated:
        spread = {date: days_of(self._files(date)) for date in self.touched}
        days = {day for date in self.touched for day in (*spread[date], *self.old.days.get(date, ()))}
        self.new.days |= spread
        # Messages that were published on other days may have events on these days too.
        relevant = {date for date, on in self.new.days.items() if days.intersection(on)} & set(self.found) | set(self.touched)
        parallelism = self.spark.sparkContext.defaultParallelism
        events = by_message(self.spark, {date: self._files(date) for date in relevant}, parallelism)
        staging = self._directory("messages") / "staging"
        traced = aggregation.traced(events, staging, self.touched).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = self._take_messages(traced, staging)
            self._write_minutes(aggregation.minutes(traced), days)
        finally:
            traced.unpersist()
        self.new.write(self.root)
        return Aggregated(self.new.version, tuple(self.touched), tuple(sorted(days)), rows)

    def _take_messages(self, traced: DataFrame, staging: Path) -> int:
        """Put the files of messages that count into their directories; return how many messages they have."""
        files = traced.where(sf.col("table") == aggregation.FILE_ROW).select("key", "published").collect()
        for file in files:
            target = staging.parent / file.key
            target.parent.mkdir(exist_ok=True)
            (staging / file.key).rename(target)
        # What is left is of attempts that failed.
        shutil.rmtree(staging, ignore_errors=True)
        self._note("messages", self.touched)
        return sum(file.published for file in files)

    def _write_minutes(self, found: DataFrame, days: Collection[str]) -> None:
        minutes = found.where(sf.to_date("minute").isin(_dates(days))).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for table in PER_MINUTE:
                rows, written = aggregation.per_minute(minutes, table), days
                if table == "queues":
                    rows, written = self._with_backlog(rows, days)
                write_by_day(rows.coalesce(_file_count(self.spark)), self._directory(table))
                self._note(table, written)
        finally:
            minutes.unpersist()

    def _files(self, date: str) -> list[Path]:
        return [self.root / file for names in self.found[date].values() for file in names]

    def _with_backlog(self, minutes: DataFrame, days: Collection[str]) -> tuple[DataFrame, set[str]]:
        """Return the queues' minutes with their backlog, and the days to write: a change moves the backlog of all later days."""
        first = min(days)
        later = {day: path for day, path in self.old.tables["queues"].items() if day >= first and day not in days}
        earlier = [path for day, path in self.old.tables["queues"].items() if day < first]
        if later:
            kept = self.spark.read.parquet(*(str(self.root / path) for path in later.values()))
            minutes = minutes.unionByName(kept.drop("backlog"))
        base = None
        if earlier:
            before = self.spark.read.parquet(*(str(self.root / path) for path in earlier))
            base = before.groupBy("queue").agg(sf.sum("backlog_change").alias("base"))
        return aggregation.with_backlog(minutes, base), {*days, *later}

    def _directory(self, table: str) -> Path:
        """Return the directory of a table's new version, which is not there yet."""
        directory = self.root / table / f"v{self.new.version:08}"
        shutil.rmtree(directory, ignore_errors=True)
        return directory

    def _note(self, table: str, dates: Collection[str]) -> None:
        """Let the directories that were written stand for `dates` of a table."""
        version = f"{table}/v{self.new.version:08}"
        for date in dates:
            self.new.tables[table].pop(date, None)
        for path in (self.root / version).glob("day=*"):
            self.new.tables[table][path.name.removeprefix("day=")] = f"{version}/{path.name}"


def _dates(days: Collection[str]) -> list[object]:
    return [sf.lit(day).cast("date") for day in sorted(days)]


def _file_count(spark: SparkSession) -> int:
    """Return into how many files a day's rows go at most: as many as tasks run at once."""
    return max(1, int(spark.sparkContext.defaultParallelism))
