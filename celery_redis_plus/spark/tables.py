"""The tables: folding events into them, and reading them.

Only what has changed is folded: the days of publishing that got events since the last fold, and the days on which those
messages had events. New directories are written beside the old ones, and count when the manifest is replaced.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as sf

from celery_redis_plus.spark import fold as folding
from celery_redis_plus.spark.ingest import parquet_rows, write_by_day
from celery_redis_plus.spark.manifest import Manifest, files, locked, remove_unreferenced, sources
from celery_redis_plus.spark.stories import ROW_DDL

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Folded", "files", "fold", "read"]

#: The tables per minute, and the column that each counts by.
PER_MINUTE = {"queues": "queue", "tasks": "task", "workers": "worker"}


@dataclass(frozen=True)
class Folded:
    """What a fold did.

    Attributes:
        version: of the manifest.
        dates: days of publishing whose messages were folded.
        days: days of the per-minute tables that were made anew.
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
    # Java does not follow `chdir`.
    root = Path(root).absolute()
    manifest = Manifest.read(root)
    if table in manifest.tables and manifest.folded and not manifest.tables[table]:
        return _empty(spark, table)
    return spark.read.parquet(*files(root, table))


def _empty(spark: SparkSession, table: str) -> DataFrame:
    """Return a table without rows, such as `workers` before the first delivery."""
    nothing = spark.createDataFrame([], ROW_DDL)
    if table == "messages":
        return folding.messages(nothing)
    minutes = folding.per_minute(nothing, PER_MINUTE[table])
    return folding.with_backlog(minutes, None) if table == "queues" else minutes


def fold(spark: SparkSession, root: str | Path, *, rebuild: bool = False) -> Folded:
    """Bring `messages`, `queues`, `tasks` and `workers` up to date with `events`; return what was done.

    Killed at any moment, the tables are as they were before or as they are after; run it again.

    Args:
        spark: the session.
        root: the folder of tables.
        rebuild: make all of them anew.

    Raises:
        TablesUnusable: another fold is at work there, or a later release has been.
    """
    root = Path(root).absolute()
    with locked(root):
        old = Manifest.read(root)
        remove_unreferenced(root, old)
        found = sources(root, old)
        touched = sorted(date for date, by_source in found.items() if rebuild or sorted(by_source) != old.folded.get(date))
        if not touched:
            return Folded(old.version)
        return _Fold(spark, root, old, found, touched).run()


class _Fold:
    """One fold, from the manifest `old` to the next."""

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
            folded=old.folded | {date: sorted(found[date]) for date in touched},
            days=dict(old.days),
            tables={table: dict(dates) for table, dates in old.tables.items()},
        )

    def run(self) -> Folded:
        spread = self._spread()
        days = {day for date in self.touched for day in (*spread[date], *self.old.days.get(date, ()))}
        self.new.days |= spread
        # Messages that were published on other days may have events on these days too.
        relevant = {date for date, on in self.new.days.items() if days.intersection(on)} & set(self.found) | set(self.touched)
        parallelism = self.spark.sparkContext.defaultParallelism
        followed = folding.changes(self._events(relevant), self._count(relevant), parallelism)
        changed = followed.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = self._write(
                "messages", folding.messages(changed.where(sf.col("date").isin(_dates(self.touched)))), self.touched
            )
            now = changed.where(sf.to_date("ts").isin(_dates(days)))
            for table, key in PER_MINUTE.items():
                minutes = folding.per_minute(now, key)
                written = days
                if table == "queues":
                    minutes, written = self._with_backlog(minutes, days)
                self._write(table, minutes, written)
        finally:
            changed.unpersist()
        self.new.write(self.root)
        return Folded(self.new.version, tuple(self.touched), tuple(sorted(days)), rows)

    def _events(self, dates: Collection[str]) -> DataFrame:
        paths = [str(self.root / file) for date in dates for names in self.found[date].values() for file in names]
        events = self.spark.read.parquet(*paths)
        # An incoming batch has a file a day, so what was asked for is what is read.
        return events.where(sf.col("date").isin(_dates(dates)))

    def _count(self, dates: Collection[str]) -> int:
        return sum(parquet_rows(self.root / file) for date in dates for names in self.found[date].values() for file in names)

    def _spread(self) -> dict[str, list[str]]:
        """Return on which days the messages of each touched date had events."""
        rows = self._events(self.touched).select("date", sf.to_date("ts").alias("day")).distinct().collect()
        spread: dict[str, list[str]] = {date: [] for date in self.touched}
        for row in rows:
            spread[row.date.isoformat()].append(row.day.isoformat())
        return {date: sorted(days) for date, days in spread.items()}

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
        return folding.with_backlog(minutes, base), {*days, *later}

    def _write(self, table: str, rows: DataFrame, dates: Collection[str]) -> int:
        """Write `dates` of a table anew and note the directories; return how many rows they have."""
        version = f"{table}/v{self.new.version:08}"
        directory = self.root / version
        shutil.rmtree(directory, ignore_errors=True)
        write_by_day(rows.coalesce(_file_count(self.spark)), directory)
        count = 0
        for date in dates:
            self.new.tables[table].pop(date, None)
        for path in directory.glob("day=*"):
            self.new.tables[table][path.name.removeprefix("day=")] = f"{version}/{path.name}"
            count += sum(parquet_rows(file) for file in path.glob("*.parquet"))
        return count


def _dates(days: Collection[str]) -> list[object]:
    return [sf.lit(day).cast("date") for day in sorted(days)]


def _file_count(spark: SparkSession) -> int:
    """Return into how many files a day's rows go at most: as many as tasks run at once."""
    return max(1, int(spark.sparkContext.defaultParallelism))
