"""Removes the files of a folder of tables that count no more."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from celery_redis_plus.spark.manifest import COMMITTED, TABLES_VERSION, Manifest

#: Seconds for which the files of a superseded version are kept for those who read them, unless a job is told otherwise.
KEPT_S = 900.0


def remove_leftovers(root: Path, current: Manifest, kept_s: float | None = None) -> None:
    """Remove what neither `current` nor the manifests of the last time name. The caller holds the tables' lock.

    Args:
        root: the folder of tables.
        current: its manifest.
        kept_s: seconds for which files of a superseded version stay; None is `KEPT_S`.
    """
    since = time.time() - (KEPT_S if kept_s is None else kept_s)
    kept = current.referenced().union(*(version.referenced() for version in _kept_versions(root, since)))
    for table in ("events", "losses", "backlogs", *current.tables):
        for version in (root / table).glob("v*"):
            _remove_files(root, version, kept)
    for run, number in current.folded.items():
        for batch in (root / "incoming" / run).glob("[0-9]*"):
            if int(batch.name) <= number:
                (batch / COMMITTED).unlink(missing_ok=True)
                _remove_files(root, batch, kept)


def _kept_versions(root: Path, since: float) -> Iterator[Manifest]:
    """Yield the manifests that were current after a time, and remove older ones."""
    versions = sorted((root / "versions").glob("*.json"))
    for place, version in enumerate(versions):
        # It is over when the next one begins.
        if place + 1 < len(versions) and versions[place + 1].stat().st_mtime < since:
            version.unlink()
            continue
        named = json.loads(version.read_text(encoding="utf-8"))
        if named.pop("tables_version") == TABLES_VERSION:
            yield Manifest(**named)


def _remove_files(root: Path, directory: Path, kept: set[str]) -> None:
    """Remove the Parquet files of the days in a directory that are not kept, and what is empty then."""
    for day in directory.glob("day=*"):
        found = list(day.glob("*.parquet"))
        gone = [path for path in found if path.relative_to(root).as_posix() not in kept]
        if len(gone) == len(found):
            shutil.rmtree(day)
            continue
        for path in gone:
            path.unlink()
            # Spark writes one beside each file.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if not any(directory.glob("day=*")):
        shutil.rmtree(directory)
