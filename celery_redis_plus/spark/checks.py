"""Checks a folder of tables against itself: files, numbers, paths of messages, sums. What is wrong is counted, by check."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import functions as sf

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark import tables
from celery_redis_plus.spark.layers import row_count
from celery_redis_plus.spark.losses import MEMORY_FULL, RANGES, TRIMMED, noted
from celery_redis_plus.spark.manifest import TABLES, Manifest, batches, event_files, folder, locked, new_batches
from celery_redis_plus.spark.message_timelines import MessageTimelines
from celery_redis_plus.spark.repartition import by_message, unpacked
from celery_redis_plus.spark.schema import arrow, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Name -> what has to hold.
CHECKS = {
    "files": "every file that the tables name is there, with its rows",
    "numbers": "the events of each queue are numbered without gaps, but for known losses, and each is there once",
    "steps": "each message is published once, and its events are possible in their order, where nothing was lost",
    "sums": "the minutes add up to the messages, and the messages to the events",
    "losses": "no event was trimmed before it was read, or left out as memory was full",
    "age": "the newest event is not older than --max-age",
}
_STEPS = {"queue": "string", "problem": "string", "count": "bigint"}
#: Counts of the table `queues` -> the same of `messages`.
_SUMS = {"published": "count_if(complete)", "delivered": "sum(attempts)"}


@dataclass(frozen=True)
class Finding:
    """What one check has found about one subject.

    Attributes:
        check: of `CHECKS`.
        subject: a queue, a file, a sum; '' is all of them.
        wrong: how many are wrong; 0 where all is well.
        detail: what was seen.
    """

    check: str
    subject: str
    wrong: int
    detail: str


def check(
    spark: SparkSession, root: str | Path, *, skip: Collection[str] = (), max_age_s: float | None = None
) -> list[Finding]:  # fmt: skip
    """Check the tables; return a finding for each thing that is wrong, and one for each check that holds.

    The findings are the table `checks`, which the next report shows.

    Args:
        spark: the session.
        root: the folder of tables.
        skip: names of checks that are left out.
        max_age_s: seconds.

    Raises:
        InvalidArgument: there is no such check.
        TablesUnusable: an aggregation or compaction runs, or there are no tables.
    """
    if unknown := set(skip).difference(CHECKS):
        raise InvalidArgument(f"there is no check {min(unknown)!r}; checks: {', '.join(CHECKS)}")
    root = folder(root)
    with locked(root):
        found = list(_Checker(spark, root, max_age_s).run(skip))
        found += [
            Finding(name, "", 0, promise)
            for name, promise in CHECKS.items()
            if name not in skip and all(finding.check not in {name, "files"} for finding in found)
        ]
        save(root, found)
    return found


def save(root: Path, findings: list[Finding]) -> None:
    """Replace the table `checks`."""
    schema = arrow({"check": "string", "subject": "string", "wrong": "bigint", "detail": "string", "checked_at": "timestamp"})
    now = time.time_ns() // 1000
    rows = [asdict(finding) | {"checked_at": now} for finding in findings]
    temporary = root / ".checks.parquet"
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
    temporary.replace(root / "checks.parquet")


class _Checker:
    """The state of a folder at one moment."""

    def __init__(self, spark: SparkSession, root: Path, max_age_s: float | None) -> None:
        self.spark = spark
        self.root = root
        self.max_age_s = max_age_s
        self.manifest = Manifest.read(root)
        # The events before their losses: a batch that is committed meanwhile explains no gap, and makes none.
        self.current = not new_batches(root, self.manifest)
        self.dated = {date: [root / file for file in files] for date, files in event_files(root, self.manifest).items()}
        self.losses = noted(root, self.manifest)
        self.files = [file for files in self.dated.values() for file in files]

    def run(self, skip: Collection[str]) -> Iterator[Finding]:
        missing = list(self._files())
        if "files" not in skip:
            yield from missing
        if missing:
            # The others would fail on them.
            return
        events = tables.read_events(self.spark, [str(file) for file in self.files])
        others = {"numbers": self._numbers, "steps": self._steps, "sums": self._sums, "losses": self._losses, "age": self._age}
        for name, method in others.items():
            if name not in skip:
                yield from method(events)

    def _files(self) -> Iterator[Finding]:
        named = self.manifest.referenced().difference(self.manifest.superseded)
        for file in sorted({*self.files, *(self.root / name for name in named)}):
            if not file.exists():
                yield Finding("files", str(file.relative_to(self.root)), 1, "it is named, and not there")
        for batch in batches(self.root):
            files = [self.root / file for of_day in batch.files.values() for file in of_day]
            if files and all(file.exists() for file in files) and (rows := sum(map(row_count, files))) != batch.rows:
                yield Finding("files", batch.name, abs(rows - batch.rows), f"{rows:,} rows; {batch.rows:,} were stored")

    def _numbers(self, events: DataFrame) -> Iterator[Finding]:
        ranges = [loss for loss in self.losses if loss.why in RANGES]
        counted = events.groupBy("queue", "epoch").agg(
            sf.count("*").alias("rows"), sf.countDistinct("n").alias("distinct"), sf.max("n").alias("last")
        )
        for row in counted.collect():
            subject = f"{row['queue']} {row['epoch']}"
            if twice := row["rows"] - row["distinct"]:
                yield Finding("numbers", subject, twice, "events are there more than once")
            own = [loss for loss in ranges if (loss.queue, loss.epoch) == (row["queue"], row["epoch"])]
            # One at the end has no event behind it yet, and is no gap.
            known = sum(loss.count for loss in own if (loss.last or 0) <= row["last"])
            if (gap := row["last"] - row["distinct"]) > known:
                detail = f"of the numbers up to {row['last']:,} are missing, and no loss tells why"
                yield Finding("numbers", subject, gap - known, detail)

    def _steps(self, _events: DataFrame) -> Iterator[Finding]:
        with_losses = {loss.queue for loss in self.losses if loss.why in {TRIMMED, MEMORY_FULL}}
        packed = by_message(self.spark, self.dated, self.spark.sparkContext.defaultParallelism)
        found = packed.mapInArrow(partial(_problems), ddl(_STEPS)).groupBy("queue", "problem").agg(sf.sum("count").alias("count"))
        for row in found.orderBy("queue", "problem").collect():
            if row["queue"] not in with_losses:
                yield Finding("steps", row["queue"], row["count"], row["problem"])

    def _sums(self, _events: DataFrame) -> Iterator[Finding]:
        if not self.manifest.tables["queues"] or self.manifest.expired_before:
            # A message and its minutes expire on days of their own.
            return
        read = {table: tables.read(self.spark, self.root, table) for table in TABLES}
        columns = [sf.expr(f"coalesce({sql}, 0)").alias(name) for name, sql in (*_SUMS.items(), ("events", "sum(events)"))]
        messages = _first(read["messages"].agg(*columns))
        minutes = _first(read["queues"].agg(*(sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in _SUMS)))
        for name in _SUMS:
            if messages[name] != minutes[name]:
                detail = f"{minutes[name]:,} in the minutes, {messages[name]:,} in the messages"
                yield Finding("sums", name, abs(messages[name] - minutes[name]), detail)
        rows = sum(map(row_count, self.files))
        if self.current and rows != messages["events"]:
            yield Finding(
                "sums", "events", abs(rows - messages["events"]), f"{rows:,} events, {messages['events']:,} in the messages"
            )

    def _losses(self, _events: DataFrame) -> Iterator[Finding]:
        lost: Counter[tuple[str, str]] = Counter()
        for loss in self.losses:
            lost[loss.queue, loss.why] += loss.count
        for (queue, why), count in sorted(lost.items()):
            if why in {TRIMMED, MEMORY_FULL}:
                yield Finding("losses", queue, count, f"events: {why}")

    def _age(self, events: DataFrame) -> Iterator[Finding]:
        newest = _first(events.agg(sf.unix_millis(sf.max("ts")).alias("ms")))["ms"]
        age = time.time() - (newest or 0) / 1000
        if self.max_age_s is not None and age > self.max_age_s:
            yield Finding("age", "", 1, f"the newest event is {age:,.0f} s old")


def _first(frame: DataFrame) -> Mapping[str, Any]:
    row = frame.first()
    return {} if row is None else row.asDict()


def _problems(packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count what is wrong with the messages of a partition that has all of their events."""
    events = unpacked(packed)
    if not events.num_rows:
        return
    timelines = MessageTimelines(events)
    queues = np.asarray(timelines.table.column("queue").to_pylist(), dtype=object)
    names = timelines.table.column("event")
    found: Counter[tuple[str, str]] = Counter()
    for place in np.flatnonzero(timelines.illegal()).tolist():
        before = "nothing" if timelines.first[place] else names[place - 1].as_py()
        found[queues[place], f"{names[place].as_py()} after {before}"] += 1
    rows = [{"queue": queue, "problem": problem, "count": count} for (queue, problem), count in found.items()]
    yield from pa.Table.from_pylist(rows, schema=arrow(_STEPS)).to_batches()
