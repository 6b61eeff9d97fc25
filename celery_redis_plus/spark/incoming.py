"""Stores a micro-batch of events: once, whatever is killed.

It becomes a directory of its own, named after the checkpoint and the batch. It counts once its `_committed.json` is there. A
batch that is read again, after a crash between that file and the checkpoint's own note, finds the file and does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.spark.manifest import Manifest, date_of, new_batches
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import COMMITTED, INGEST_LOCK

if TYPE_CHECKING:
    from celery_redis_plus.spark.losses import Loss
    from celery_redis_plus.spark.storage import Storage

#: Events of a micro-batch: with Spark each costs about a second however few it has.
EVENTS_A_BATCH = 500_000


@dataclass(frozen=True)
class Waiting:
    """The batches that the tables do not contain yet: how many, their events and their bytes."""

    batches: int
    events: int
    bytes: int


def waiting(root: str | Path | Storage, manifest: Manifest) -> Waiting:
    """Return what waits for an aggregation."""
    storage = opened(root)
    new = new_batches(storage, manifest)
    # An aggregation may have put a file into another one by now.
    size = sum(storage.size(file) or 0 for batch in new for files in batch.files.values() for file in files)
    return Waiting(len(new), sum(batch.rows for batch in new), size)


@dataclass(frozen=True)
class Stored:
    """What a micro-batch has put into the table `events`, and what it lacks.

    Attributes:
        rows: events.
        losses: what it lacks.
        bytes: what its files take; 0 where it was there already.
    """

    rows: int
    losses: Sequence[Loss] = ()
    bytes: int = 0


def is_stored(storage: Storage, run: str, number: int) -> bool:
    """Return whether a micro-batch counts."""
    # In this order: an aggregation takes it into the tables, and removes its files later.
    there = storage.read(f"{storage.batch_folder(run, number)}/{COMMITTED}") is not None
    return there or number <= Manifest.read(storage).folded.get(run, -1)


def store_batch(
    storage: Storage,
    run: str,
    number: int,
    write: Callable[[str], None],
    losses_of: Callable[[list[str], int], list[Loss]],
    offset: Mapping[str, str] | None = None,
) -> Stored:
    """Write a micro-batch, unless it is there. The caller holds `INGEST_LOCK`.

    Args:
        storage: the place of the tables.
        run: names the checkpoint.
        number: of the micro-batch.
        write: writes its events into a folder, a folder of that for each day.
        losses_of: returns what it lacks, of its files and its number.
        offset: where it ends, for a place in which it says so itself.

    Raises:
        TablesUnusable: another ingest has taken over; the micro-batch may count or not.
    """
    if number <= Manifest.read(storage).folded.get(run, -1):
        # The tables have it already, and its files may be gone.
        return Stored(0)
    folder = storage.batch_folder(run, number)
    if (there := storage.read(f"{folder}/{COMMITTED}")) is not None:
        return Stored(json.loads(there)["rows"])
    # An earlier attempt may have left files.
    storage.clear(folder)
    write(folder)
    files: dict[str, list[str]] = {}
    rows = size = 0
    for name, (its_size, _) in sorted(storage.names(folder).items()):
        date = date_of(name[len(folder) + 1 :].partition("/")[0])
        if date is not None and name.endswith(".parquet"):
            files.setdefault(date, []).append(name)
            rows += storage.row_count(name)
            size += its_size
    losses = losses_of([file for of_day in files.values() for file in of_day], number)
    marker = {"rows": rows, "files": files, "losses": [asdict(loss) for loss in losses]}
    storage.write_json(f"{folder}/{COMMITTED}", marker | ({"offset": dict(offset)} if offset is not None else {}))
    storage.verify(INGEST_LOCK)
    return Stored(rows, losses, size)
