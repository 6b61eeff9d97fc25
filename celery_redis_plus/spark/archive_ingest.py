"""Stores the events that `events archive --events` has kept in the table `events`: each once, also where the stream has some.

A file of the archive becomes a micro-batch of the folder's own ingest, which goes on behind it in the stream: both are known in
one step (`checkpoint.py`). An event that the folder has already is left out, by queue and number.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from celery_redis_plus.broker.exchanges.declared_topology import id_of_mark
from celery_redis_plus.errors import InvalidArgument, TablesUnusable
from celery_redis_plus.event_log.archive_folders import described
from celery_redis_plus.event_log.batches import arrow_schema
from celery_redis_plus.events import entry_id
from celery_redis_plus.spark.arrow_columns import ints
from celery_redis_plus.spark.arrow_ingest import write_days
from celery_redis_plus.spark.checkpoint import position_in
from celery_redis_plus.spark.checks import Numbers, numbers_of
from celery_redis_plus.spark.incoming import Stored, is_stored, store_batch
from celery_redis_plus.spark.known_broker import BROKER_FILE
from celery_redis_plus.spark.losses import PARTS, RANGES, SUPPLIED, TRIMMED, Loss, noted
from celery_redis_plus.spark.manifest import Manifest, event_files
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import INGEST_LOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_redis_plus.event_log.offsets import Id
    from celery_redis_plus.spark.storage import Storage

#: The numbers of events by queue and epoch.
Known = dict[tuple[str, int], Numbers]
#: Queue and epoch -> first and last numbers.
Ranges = dict[tuple[str, int], list[tuple[int, int]]]
_NAME = re.compile(r"finished-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True)
class ArchivedFile:
    """A batch of the archive.

    Attributes:
        path: of its events.
        queue: whose they are.
        before: the last event of the batch before it; None where there is none.
        end: its last event.
        shard: that had it.
        database: its id; '' where the archive does not tell.
    """

    path: Path
    queue: str
    before: Id | None
    end: Id
    shard: int = 0
    database: str = ""


def store_archive(
    root: str | Path | Storage, folder: Path, on_batch: Callable[[int, Stored], None], *, also_of_others: bool = False
) -> None:  # fmt: skip
    """Store what an archive has.

    Killed at any moment, run it again.

    Args:
        root: the folder of tables, or their URL.
        folder: the archive.
        on_batch: called with the number of each micro-batch and what it has.
        also_of_others: store events of another broker, too, such as the same one before it was flushed.

    Raises:
        InvalidArgument: the folder is no archive, or lacks events.
        TablesUnusable: another ingest writes into the tables, or the archive has events of another broker.
    """
    storage = opened(root)
    batches = archived(folder)
    with storage.locked(INGEST_LOCK):
        _store_all(storage, batches, on_batch, _of_others(storage, batches, allowed=also_of_others))


def _of_others(storage: Storage, batches: list[ArchivedFile], *, allowed: bool) -> set[Path]:
    """Return the batches of another broker than that whose stream is read. The first one becomes known as that."""
    known = dict(storage.current(BROKER_FILE) or {})
    first = dict(known)
    others = set()
    for batch in batches:
        if batch.database and known.setdefault(str(batch.shard), batch.database) != batch.database:
            others.add(batch.path)
    if others and not allowed:
        raise TablesUnusable(
            f"{min(others).parent} has events of another broker than {storage}: give them tables of their own. Where the broker "
            "was flushed since, `--allow-data-loss` takes them"
        )
    if known != first:
        storage.write_json(BROKER_FILE, known)
    return others


def _store_all(
    storage: Storage, batches: list[ArchivedFile], on_batch: Callable[[int, Stored], None], others: set[Path]
) -> None:  # fmt: skip
    position = position_in(storage)
    number = position.planned()
    if number > position.stored():
        if is_stored(storage, position.run, number):
            position.commit(number)
        else:
            # It was planned only: what it was to have is read again.
            number -= 1
    manifest = Manifest.read(storage)
    known = numbers_of(storage, [file for files in event_files(storage, manifest).values() for file in files])
    lost = [loss for loss in noted(storage, manifest) if loss.why in RANGES]
    removed = _removed(lost)
    offset = dict(position.offset(number) or {})
    for batch in batches:
        numbers = _numbers(batch)
        missing = list(_missing(batch, numbers, known, lost))
        new = {key: of_epoch[~_present(known, removed, key, of_epoch)] for key, of_epoch in numbers.items()}
        # A stream that was read further is not read again, nor is one read on behind the events of another one.
        before = entry_id(offset.get(batch.queue, "0-0"))
        end = before if batch.path in others else max(batch.end, before)
        if any(map(len, new.values())) or missing or before < end:
            number += 1
            if before < end:
                offset[batch.queue] = "{}-{}".format(*end)
            position.plan(number, offset)

            told = [*missing, *_supplied(new, lost)]
            write = partial(_write, storage, batch, known, removed)
            on_batch(number, store_batch(storage, position.run, number, write, lambda *_, told=told: told, offset))
            position.commit(number)
            lost += missing
        for key, of_epoch in numbers.items():
            known.setdefault(key, Numbers()).add(of_epoch)


def _write(storage: Storage, batch: ArchivedFile, known: Known, removed: Ranges, place: str) -> None:
    write_days(storage, _new_events(batch, known, removed), place)


def archived(folder: Path) -> list[ArchivedFile]:
    """Return the batches of an archive, those of a queue in their order.

    Raises:
        InvalidArgument: there are none, or one was moved without its events.
    """
    found = []
    for own in sorted(folder.glob("queue=*")):
        before: Id | None = None
        queue, shard, mark = described(own)
        for finished in sorted(own.glob("finished-*.parquet")):
            match = _NAME.fullmatch(finished.name)
            if match is None:
                continue
            end = int(match[1]), int(match[2])
            events = finished.with_name(finished.name.replace("finished", "events", 1))
            if not events.exists():
                raise InvalidArgument(f"{finished} was moved without its events: `events archive --events` keeps them")
            found.append(ArchivedFile(events, queue, before, end, shard, id_of_mark(mark.encode())))
            before = end
    if not found:
        raise InvalidArgument(f"{folder} has no files of `celery-redis-plus events archive`")
    return found


def _numbers(batch: ArchivedFile) -> dict[tuple[str, int], NDArray[np.int64]]:
    """Return (queue, epoch) -> the numbers of the events of a batch."""
    rows = parquet.read_table(batch.path, columns=["queue", "epoch", "n"])
    epochs, n = ints(rows.column("epoch")), ints(rows.column("n"))
    shown = rows.column("queue")[0].as_py() if rows.num_rows else batch.queue
    return {(shown, int(epoch)): n[epochs == epoch] for epoch in np.unique(epochs)}


def _removed(losses: list[Loss]) -> Ranges:
    """Return the ranges of numbers by queue and epoch that were removed, and stay so.

    A loss tells the first and the last. What was trimmed between them was never there.
    """
    keys = {(loss.queue, loss.epoch) for loss in losses if loss.why in PARTS}
    parts = [loss for loss in losses if loss.why in PARTS]
    trimmed = [loss for loss in losses if loss.why == TRIMMED]
    return {key: _outside(_ranges(parts, key), _ranges(trimmed, key)) for key in keys}


def _present(known: Known, removed: Ranges, key: tuple[str, int], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = known[key].has(numbers) if key in known else np.zeros(len(numbers), dtype=np.bool_)
    for first, last in removed.get(key, ()):
        there |= (numbers >= first) & (numbers <= last)
    return there


def _ranges(losses: list[Loss], key: tuple[str, int]) -> list[tuple[int, int]]:
    """Return the first and last numbers of the losses of an epoch."""
    return [(loss.first or 0, loss.last or 0) for loss in losses if (loss.queue, loss.epoch) == key]


def _new_events(batch: ArchivedFile, known: Known, removed: Ranges) -> Iterator[pa.RecordBatch]:
    """Yield the events of a batch that the tables do not have."""
    with parquet.ParquetFile(batch.path) as file:
        for events in file.iter_batches(batch_size=5000):
            present = np.zeros(events.num_rows, dtype=np.bool_)
            epochs, n = ints(pa.chunked_array([events.column("epoch")])), ints(pa.chunked_array([events.column("n")]))
            for epoch in np.unique(epochs):
                own = epochs == epoch
                present[own] = _present(known, removed, (events.column("queue")[0].as_py(), int(epoch)), n[own])
            if not present.all():
                yield events.filter(pa.array(~present)).select(arrow_schema().names)


def _missing(
    batch: ArchivedFile, numbers: dict[tuple[str, int], NDArray[np.int64]], known: Known, lost: list[Loss]
) -> Iterator[Loss]:
    """Yield the numbers of a batch that neither it nor the tables have, and no loss tells of."""
    now = time.time_ns() // 1000
    for key, there in numbers.items():
        queue, epoch = key
        first = batch.before[1] + 1 if batch.before is not None and batch.before[0] == epoch else 1
        end = batch.end[1] if batch.end[0] == epoch else int(there.max())
        edges = np.concatenate(([first - 1], np.sort(there), [end + 1]))
        # Ranges, not numbers: millions may have expired.
        gaps = [(int(edges[place]) + 1, int(edges[place + 1]) - 1) for place in np.flatnonzero(np.diff(edges) > 1).tolist()]
        for low, high in _outside(gaps, _ranges(lost, key)):
            numbers_there = np.arange(low, high + 1)
            for run in _runs(numbers_there[~_present(known, {}, key, numbers_there)]):
                yield Loss(queue, TRIMMED, epoch, int(run[0]), int(run[-1]), len(run), None, None, now)


def _outside(ranges: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of ranges that are in none of others."""
    for first, last in others:
        parts = [((low, min(high, first - 1)), (max(low, last + 1), high)) for low, high in ranges]
        ranges = [(low, high) for both in parts for low, high in both if low <= high]
    return ranges


def _supplied(new: dict[tuple[str, int], NDArray[np.int64]], lost: list[Loss]) -> Iterator[Loss]:
    """Yield the new events of a batch that were noted as lost."""
    now = time.time_ns() // 1000
    for loss in lost:
        numbers = new.get((loss.queue, loss.epoch))
        if loss.why == TRIMMED and numbers is not None:
            for run in _runs(np.unique(numbers[(numbers >= (loss.first or 0)) & (numbers <= (loss.last or 0))])):
                first, last = int(run[0]), int(run[-1])
                yield Loss(loss.queue, SUPPLIED, loss.epoch, first, last, len(run), None, None, now, loss.shard)


def _runs(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return numbers, in their order, divided where some are between."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []
