"""Counts the events that a micro-batch of `ingest` lacks: gaps in their numbers, and what was never written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.events import entry_id
from celery_redis_plus.keys import encode_name
from celery_redis_plus.spark.arrow_columns import ints, microseconds
from celery_redis_plus.spark.layers import read
from celery_redis_plus.spark.losses import MEMORY_FULL, NO_EVENT, SAMPLED, TRIMMED, Loss
from celery_redis_plus.spark.read_plan import moved
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import EventLogs
    from celery_redis_plus.event_log.offsets import Offsets
    from celery_redis_plus.spark.source_options import SourceOptions
    from celery_redis_plus.spark.storage import Storage

#: (epoch, first number, last number) of events.
Range = tuple[int, int, int]

_COLUMNS = pa.schema([("queue", pa.string()), ("epoch", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


class LossCounter:
    """Counts for one ingest.

    Args:
        storage: where its events are.
        options: of its source.
        known: the losses that its folder has.
    """

    def __init__(self, storage: Storage, options: SourceOptions, known: Iterable[Loss] = ()) -> None:
        self._storage = storage
        self._options = options
        #: (Queue, shard) -> the last of its unwritten events that is noted.
        self._unwritten = {
            (loss.queue, loss.shard): loss for loss in sorted(known, key=lambda loss: loss.noted_at) if loss.why == MEMORY_FULL
        }
        self._asked_at: int | None = None

    def losses(
        self, log: EventLogs, files: Sequence[str], start: Mapping[str, str] | None, end: Mapping[str, str]
    ) -> list[Loss]:  # fmt: skip
        """Return what a micro-batch lacks.

        Args:
            log: the broker. It may go on without shards that cannot be reached: the micro-batch has none of their events.
            files: its events.
            start: the offset at which it begins; None is the beginning.
            end: the offset at which it ends.

        Raises:
            ServerUnreachable: and its kin from `errors`.
        """
        now = time.time_ns() // 1000
        events = read(self._storage, files, _COLUMNS)
        # The planner logs the queues that cannot be read, and keeps them out of micro-batches.
        numberings, _ = log.sound_numberings(list(end), strict=False)
        found = []
        if start is not None or self._begins_at_the_start:
            begin = moved(dict(start or {}), numberings, log.queue_of)
            ranges = {queue: _ranges(numbering, begin.get(queue), end[queue]) for queue, numbering in numberings.items()}
            missing = gaps(events, ranges, now, log.queue_of)
            found = [replace(loss, why=NO_EVENT) if _passed_over(log, loss) else loss for loss in missing]
        found += self._never_written(log, numberings, events, now)
        found = [replace(loss, queue=log.queue_of(loss.queue), shard=log.shard_of(loss.queue)) for loss in found]
        self._asked_at = now
        self._unwritten |= {(loss.queue, loss.shard): loss for loss in found if loss.why == MEMORY_FULL}
        return found

    @property
    def _begins_at_the_start(self) -> bool:
        options = self._options
        by_time = options.starting_timestamp is not None or options.starting_offsets_by_timestamp
        return not by_time and options.starting_offsets in {None, "earliest"}

    def _never_written(
        self, log: EventLogs, numberings: Mapping[str, Offsets], events: pa.Table, now: int
    ) -> Iterator[Loss]:  # fmt: skip
        told: dict[str, tuple[bytes | None, bytes | None]] = {}
        for own, keys in log.parts(numberings):
            replies = own.ask([("HMGET", of_queue.events_meta, "skipped", "permille") for of_queue in keys.values()])
            told |= dict(zip(keys, replies, strict=True))
        counted = events.group_by(["queue", "epoch"]).aggregate([("n", "count"), ("ts", "min"), ("ts", "max")]).to_pylist()
        for queue, numbering in numberings.items():
            epoch = numbering.epochs[-1][0] if numbering.epochs else 0
            skipped, sampled = told[queue]
            first, last = self._first_unwritten(log, queue, numbering), stored_number(skipped)
            if last >= first:
                yield Loss(queue, MEMORY_FULL, epoch, first, last, last - first + 1, self._asked_at, now, now)
            permille, shown = _permille(sampled), _shown(log.queue_of(queue))
            # Events of the same queue on another shard are of other epochs.
            epochs = {one for one, _ in numbering.epochs}
            rows = [row for row in counted if row["queue"] == shown and row["epoch"] in epochs] if permille < 1000 else []
            if rows:
                first_at = min(round(row["ts_min"].timestamp() * 1e6) for row in rows)
                last_at = max(round(row["ts_max"].timestamp() * 1e6) for row in rows)
                estimate = sum(row["n_count"] for row in rows) * (1000 - permille) // permille
                yield Loss(queue, SAMPLED, epoch, None, None, estimate, first_at, last_at, now)

    def _first_unwritten(self, log: EventLogs, queue: str, numbering: Offsets) -> int:
        """Return the number of the first unwritten event that is not noted: a log that began anew counts from 1 again."""
        before = self._unwritten.get((log.queue_of(queue), log.shard_of(queue)))
        same_log = before is not None and bool(numbering.epochs) and numbering.epochs[0][0] <= before.epoch
        return (before.last or 0) + 1 if before is not None and same_log else 1


def gaps(
    events: pa.Table, ranges: Mapping[str, Sequence[Range]], now: int, queue_of: Callable[[str], str] = str
) -> Iterator[Loss]:  # fmt: skip
    """Yield the events of `ranges` that are not among `events`.

    Args:
        events: `queue`, `epoch`, `n` and `ts`.
        ranges: by the names of queues, as `EventLogs` has them.
        now: µs.
        queue_of: returns the queue of a name.
    """
    counted = events.group_by(["queue", "epoch"]).aggregate([("n", "count")]).to_pylist()
    counts = {(row["queue"], row["epoch"]): row["n_count"] for row in counted}
    for queue, wanted in ranges.items():
        shown = _shown(queue_of(queue))
        for epoch, low, high in wanted:
            if counts.get((shown, epoch), 0) != high - low + 1:
                own = (pc.field("queue") == shown) & (pc.field("epoch") == epoch)
                rows = events.filter(own).sort_by("n")
                numbers, times = ints(rows.column("n")), microseconds(rows.column("ts"))
                edges = np.concatenate(([low - 1], numbers, [high + 1]))
                for place in np.flatnonzero(np.diff(edges) > 1).tolist():
                    first, last = int(edges[place]) + 1, int(edges[place + 1]) - 1
                    before = int(times[place - 1]) if place else None
                    after = int(times[place]) if place < len(times) else now
                    yield Loss(queue, TRIMMED, epoch, first, last, last - first + 1, before, after, now)


def _ranges(numbering: Offsets, start: str | None, end: str) -> list[Range]:
    begin = 0 if start is None else numbering.position_of(entry_id(start))
    return numbering.ranges(begin, numbering.position_of(entry_id(end)))


def _passed_over(log: EventLogs, loss: Loss) -> bool:
    """Return whether the numbers are of entries that are no events: somebody else wrote them, and they are still there."""
    first, last = f"{loss.epoch}-{loss.first}", f"{loss.epoch}-{loss.last}"
    own, keys = log.of(loss.queue)
    (entries,) = own.ask([("XRANGE", keys.events, first, last, "COUNT", 1)])
    return bool(entries)


def _permille(field: bytes | None) -> int:
    """Return the share of messages whose events are written, in thousandths."""
    return int(field) if field and field.isdigit() and 0 < int(field) < 1000 else 1000


def _shown(queue: str) -> str:
    """Return a queue's name as the column `queue` has it."""
    return encode_name(queue).decode("utf-8", "replace")
