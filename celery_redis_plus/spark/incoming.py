"""Stores a micro-batch of events: once, whatever is killed.

It becomes a directory of its own, named after the checkpoint and the batch. It counts once its `_committed.json` is there. A
batch that is read again, after a crash between that file and the checkpoint's own note, finds the file and does nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.spark.layers import row_count
from celery_redis_plus.spark.manifest import COMMITTED, Manifest, new_batches, write_json

if TYPE_CHECKING:
    from celery_redis_plus.spark.losses import Loss

#: Events of a micro-batch: with Spark each costs about a second however few it has.
EVENTS_A_BATCH = 500_000


@dataclass(frozen=True)
class Waiting:
    """The batches that the tables do not contain yet: how many, their events and their bytes."""

    batches: int
    events: int
    bytes: int


def waiting(root: Path, manifest: Manifest) -> Waiting:
    """Return what waits for an aggregation."""
    new = new_batches(root, manifest)
    size = 0
    for file in (file for batch in new for files in batch.files.values() for file in files):
        # An aggregation may have put it into another one by now.
        with suppress(FileNotFoundError):
            size += (root / file).stat().st_size
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


def store_batch(
    root: Path, run: str, number: int, write: Callable[[Path], None], losses_of: Callable[[list[Path], int], list[Loss]]
) -> Stored:
    """Write a micro-batch, unless it is there. The caller keeps other ingests out of `root`.

    Args:
        root: the folder of tables.
        run: names the checkpoint.
        number: of the micro-batch.
        write: writes its events into a directory, one folder a day.
        losses_of: returns what it lacks, of its files and its number.
    """
    if number <= Manifest.read(root).folded.get(run, -1):
        # The tables have it already, and its files may be gone.
        return Stored(0)
    directory = root / "incoming" / run / f"{number:08}"
    marker = directory / COMMITTED
    if marker.exists():
        return Stored(json.loads(marker.read_text(encoding="utf-8"))["rows"])
    # An earlier attempt may have left files.
    shutil.rmtree(directory, ignore_errors=True)
    write(directory)
    files: dict[str, list[str]] = {}
    rows = size = 0
    for path in sorted(directory.glob("day=*/*.parquet")):
        files.setdefault(path.parent.name.removeprefix("day="), []).append(path.relative_to(root).as_posix())
        rows += row_count(path)
        size += path.stat().st_size
    losses = losses_of([root / file for of_day in files.values() for file in of_day], number)
    write_json(marker, {"rows": rows, "files": files, "losses": [asdict(loss) for loss in losses]})
    return Stored(rows, losses, size)
