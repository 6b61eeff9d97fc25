"""Compacts the table `events`: the many small files of micro-batches become one or a few a day, and leftovers go."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.spark.ingest import parquet_rows, read_events, run_id, write_by_day
from celery_redis_plus.spark.manifest import COMMITTED, Manifest, batches, folder, locked, remove_unreferenced, sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Rows a compacted file has, about: 40 MB.
ROWS_A_FILE = 2_000_000


def compact(spark: SparkSession, root: str | Path) -> tuple[int, int]:
    """Compact the days that have incoming batches; return how many files there were, and are.

    Killed at any moment, the table is as it was before or as it is after. Aggregated tables stay current.

    Raises:
        TablesUnusable: another aggregation or compaction runs there.
    """
    root = folder(root)
    with locked(root):
        old = Manifest.read(root)
        remove_unreferenced(root, old)
        _remove_markers(root, old)
        pending = [batch for batch in batches(root) if batch.files and batch.name not in old.absorbed]
        dates = sorted({date for batch in pending for date in batch.files})
        if not dates:
            return 0, 0
        found = sources(root, old)
        # Compacted events without a manifest are those of one that was lost, not of a compaction that was killed.
        old.write(root)
        new = replace(old, version=old.version + 1, events=dict(old.events), aggregated=dict(old.aggregated))
        before = sum(len(files) for date in dates for files in found[date].values())
        after = 0
        for date in dates:
            files = [root / file for names in found[date].values() for file in names]
            directory = f"events/v{new.version:08}/day={date}"
            after += _write(spark, files, root, new.version, date)
            if old.aggregated.get(date) == sorted(found[date]):
                new.aggregated[date] = [directory]
            new.events[date] = directory
        still_there = {batch.name for batch in batches(root) if batch.files}
        new.absorbed = [name for name in old.absorbed if name in still_there] + [batch.name for batch in pending]
        new.write(root)
        return before, after


def _write(spark: SparkSession, files: list[Path], root: Path, version: int, date: str) -> int:
    """Write one day's events into its new directory; return how many files that made."""
    count = -(-sum(parquet_rows(file) for file in files) // ROWS_A_FILE)
    staging = root / "events" / f"v{version:08}" / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    rows = read_events(spark, [str(file) for file in files]).where(f"date = DATE'{date}'")
    # A message's events together and in order: they compress better, and reads of one queue skip the others.
    rows = rows.repartitionByRange(count, "queue", "epoch", "n").sortWithinPartitions("queue", "epoch", "n")
    write_by_day(rows, staging)
    target = staging.parent / f"day={date}"
    shutil.rmtree(target, ignore_errors=True)
    (staging / f"day={date}").rename(target)
    shutil.rmtree(staging)
    return len(list(target.glob("*.parquet")))


def _remove_markers(root: Path, manifest: Manifest) -> None:
    """Remove the markers of absorbed, emptied batches that Spark will not run again."""
    checkpoint = root / "checkpoint" / "events"
    current = run_id(checkpoint) if (checkpoint / "metadata").exists() else ""
    kept = {batch.name for batch in batches(root) if batch.losses}.difference(manifest.counted).union(manifest.absorbed)
    commits = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    for batch in batches(root):
        run, _, number = batch.name.partition("/")
        done = run != current or int(number) < max(commits, default=0)
        if not batch.files and batch.rows and done and batch.name not in kept:
            shutil.rmtree((root / "incoming" / batch.name / COMMITTED).parent)
