"""Removes the files of a folder of tables that count no more."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_redis_plus.spark import delta_log
from celery_redis_plus.spark.manifest import OLDEST_OF_THESE_FIELDS, TABLES_VERSION, Manifest
from celery_redis_plus.spark.receipts import finish, unfinished_receipts
from celery_redis_plus.spark.storage import COMMITTED, TABLES_LOCK

if TYPE_CHECKING:
    from celery_redis_plus.spark.storage import Storage

#: Seconds for which the files of a superseded version are kept for those who read them, unless a job is told otherwise.
KEPT_S = 900.0
_VERSION, _UNFINISHED = re.compile(r"versions/\d+\.json"), re.compile(r"versions/\.\d+\.json\.\d+")


def remove_leftovers(storage: Storage, current: Manifest, kept_s: float | None = None) -> None:
    """Remove what neither `current` nor the manifests of the last time name. The caller holds the tables' lock.

    Logs of Delta Lake that a killed job has left behind are brought to `current` first.

    Where `spark forget` made the current version, those before it go at once.

    Args:
        storage: the place of the tables.
        current: its manifest.
        kept_s: seconds for which files of a superseded version stay; None is `KEPT_S`.
    """
    # They may name files of the version before, if a job was killed.
    delta_log.follow(storage, current)
    unfinished = unfinished_receipts(storage, current)
    since = float("inf") if unfinished else time.time() - (KEPT_S if kept_s is None else kept_s)
    named = current.referenced().union(*(version.referenced() for version in kept_versions(storage, current.version, since)))
    # Spark writes one with a checksum beside each file.
    kept = named.union(f"{folder}/.{name}.crc" for folder, _, name in (file.rpartition("/") for file in named))
    gone: dict[str, list[str]] = {}
    for table in ("events", "losses", "backlogs", *current.tables):
        gone |= {place: found for place, found in _not_kept(storage, table, kept).items() if place.startswith(f"{table}/v")}
    for run, number in current.folded.items():
        for place, found in _not_kept(storage, f"incoming/{run}", kept).items():
            of_batch = int(place.rpartition("/")[2].partition(".")[0])
            # That of the last batch says where an ingest goes on, which has stored no later one.
            position = f"{place}/{COMMITTED}" if storage.has_offsets and of_batch == number else ""
            if of_batch <= number and found != [position]:
                gone[place] = [name for name in found if name != position]
    # Only then: what a later holder writes was not there yet, if there is none now.
    storage.verify(TABLES_LOCK)
    for place, names in gone.items():
        # A batch is none any more before its files go.
        storage.remove(sorted(names, key=lambda name: not name.endswith(COMMITTED)))
        storage.prune(place)
    for receipt in unfinished:
        finish(storage, receipt)


def kept_versions(storage: Storage, current: int, since: float) -> Iterator[Manifest]:
    """Yield the manifests that were current after a time, and remove older ones but that of the current version."""
    there = sorted(storage.names("versions").items())
    # A job that was killed as it wrote one leaves its own file, and file systems have some of theirs.
    unfinished = [name for name, (_, at) in there if _UNFINISHED.fullmatch(name) and at.timestamp() < since]
    storage.remove(unfinished)
    versions = [(name, found) for name, found in there if _VERSION.fullmatch(name)]
    for place, (name, _) in enumerate(versions):
        # It is over when the next one begins.
        is_over = place + 1 < len(versions) and versions[place + 1][1][1].timestamp() < since
        if is_over and int(name.rpartition("/")[2].partition(".")[0]) != current:
            storage.remove([name])
            continue
        named = dict(storage.once(name) or {})
        # After an upgrade, readers of the older release still have theirs, and it finds them where the rebuild is killed.
        if OLDEST_OF_THESE_FIELDS <= named.pop("tables_version", 0) <= TABLES_VERSION:
            yield Manifest(**named)


def _not_kept(storage: Storage, under: str, kept: set[str]) -> dict[str, list[str]]:
    """Return the folders in a folder that have files which are not kept, or nothing, and these files."""
    found: dict[str, list[str]] = {f"{under}/{folder}": [] for folder in storage.folders(under)}
    full = set()
    for name in storage.names(under):
        place = f"{under}/{name[len(under) + 1 :].partition('/')[0]}"
        if name in kept:
            full.add(place)
        elif place in found:
            found[place].append(name)
    return {place: names for place, names in found.items() if names or place not in full}
