"""Repartitions events by message: all events of a message reach one task, as Arrow from the file on.

Spark would read the files into rows, shuffle them, and convert them to Arrow for Python, which took half of the aggregation's
time. Here a task reads files with pyarrow and divides the events into buckets by message id. Spark shuffles one value per bucket,
into which some thousand events are packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from celery_redis_plus.event_log.batches import arrow_schema
from celery_redis_plus.spark.arrow_columns import by_day
from celery_redis_plus.spark.manifest import MIXED
from celery_redis_plus.spark.message_timelines import EVENT_COLUMNS_READ
from celery_redis_plus.spark.roots import of_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from celery_redis_plus.spark.storage import Storage

#: Events that one task traces at once, in memory: about 100 MB.
EVENTS_A_TASK = 250_000
#: Events that this process traces at once, in memory: about 500 MB.
EVENTS_IN_MEMORY = 1_000_000

#: The columns of the events that are read; a column that an older release did not write is null.
EVENTS_SCHEMA = pa.schema(
    [pa.field("date", pa.date32()) if name == "date" else arrow_schema().field(name) for name in EVENT_COLUMNS_READ]
)

#: The events of messages that may have more of them, as an aggregation keeps them: `folded` is true of them, null of new ones.
OPEN_SCHEMA = EVENTS_SCHEMA.append(pa.field("folded", pa.bool_()))


@dataclass(frozen=True)
class FileShare:
    """The buckets that the events of a file go to.

    Attributes:
        root: the folder of the tables, or their URL.
        file: its name.
        first, buckets: the buckets of its day of publishing.
        days: the buckets of each day, where it has events of several that go to different ones; those of a day that is not among
            them go to `first` and `buckets`.
    """

    root: str
    file: str
    first: int
    buckets: int
    days: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def by_message(spark: SparkSession, storage: Storage, files: Mapping[str, Sequence[str]], parallelism: int) -> DataFrame:
    """Return the events of `files` (by day of publishing, `MIXED` of several) packed, all those of a message in one partition.

    `unpacked` reads them. A partition has events of one day of publishing, or of several small ones.
    """
    file_shares, tasks = file_shares_of(storage.where, files, _rows(storage, files), parallelism)
    readers = max(1, min(len(file_shares), max(parallelism, tasks)))
    shares = [file_shares[number::readers] for number in range(readers)]
    read = spark.range(0, readers, 1, readers).mapInArrow(partial(_pack, shares=shares), "bucket int, packed binary")
    return read.repartitionById(tasks, "bucket")


def in_this_process(storage: Storage, files: Mapping[str, Sequence[str]]) -> Iterator[pa.Table]:
    """Yield the same partitions as `by_message`, without Spark: all events are in memory then."""
    file_shares, count = file_shares_of(storage.where, files, _rows(storage, files), 1)
    buckets: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
    for number, events in _divided(file_shares):
        buckets[number].append(events)
    for place, batches in enumerate(buckets):
        buckets[place] = []
        yield pa.Table.from_batches(batches, schema=OPEN_SCHEMA)


def in_portions(
    storage: Storage, files: Mapping[str, Sequence[str]], most: int = EVENTS_IN_MEMORY
) -> Iterator[pa.Table]:  # fmt: skip
    """Yield all events of some messages at a time, about `most`; a day that has more is read several times.

    Those of `MIXED` are in memory all the time.
    """
    mixed = dict(by_day(storage.dataset(files[MIXED], OPEN_SCHEMA).to_table())) if files.get(MIXED) else {}
    for date in sorted({*files, *mixed}.difference([MIXED])):
        of_day, also = files.get(date, ()), mixed[date].to_batches() if date in mixed else []
        count = max(1, -(-_rows(storage, {date: of_day})[date] // most))
        shares = [FileShare(storage.where, file, 0, count) for file in of_day]
        for wanted in range(count):
            divided = chain(_divided(shares), *(_in_buckets(batch, 0, count) for batch in also))
            parts = [events for number, events in divided if number == wanted]
            yield pa.Table.from_batches(parts, schema=OPEN_SCHEMA)


def _rows(storage: Storage, files: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {day: sum(map(storage.row_count, of_day)) for day, of_day in files.items()}


def file_shares_of(
    root: str, files: Mapping[str, Sequence[str]], rows: Mapping[str, int], parallelism: int
) -> tuple[list[FileShare], int]:
    """Return where the events of each file go, and how many buckets there are: several for a big day, one for some small days."""
    total = sum(rows.values())
    # All of the last tasks at once, too.
    tasks = -(-max(1, -(-total // EVENTS_A_TASK)) // parallelism) * parallelism
    size = max(1, -(-total // tasks))
    file_shares: list[FileShare] = []
    first, filled, used = 0, 0, 0
    days: dict[str, tuple[int, int]] = {}
    for day in sorted(day for day in files if day != MIXED):
        if filled + rows[day] > size:
            first, filled = used, 0
        buckets = max(1, -(-rows[day] // size))
        file_shares += [FileShare(root, file, first, buckets) for file in files[day]]
        days[day] = first, buckets
        filled += rows[day]
        used = first + buckets
    # Many may be of days that have no other files.
    used = max(1, used, -(-rows.get(MIXED, 0) // size))
    file_shares += [FileShare(root, file, 0, used, days if used > 1 else {}) for file in files.get(MIXED, ())]
    return file_shares, used


def unpacked(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the events that a partition of `by_message` holds."""
    values = [value.as_buffer() for batch in batches for value in batch.column("packed")]
    return pa.concat_tables([OPEN_SCHEMA.empty_table(), *(pa.ipc.open_stream(value).read_all() for value in values)])


def _pack(batches: Iterator[pa.RecordBatch], *, shares: list[list[FileShare]]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the file shares whose numbers come in."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            for bucket, events in _divided(shares[number]):
                columns = [pa.array([bucket], pa.int32()), pa.array([_serialized(events)], pa.binary())]
                yield pa.record_batch(columns, names=["bucket", "packed"])


def _divided(file_shares: Iterable[FileShare]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the events of files by bucket."""
    # To open a data set takes a millisecond: many small days go to one bucket.
    for (root, first, buckets, _), alike in groupby(file_shares, _assignment):
        shares = list(alike)
        days = shares[0].days
        events = of_task(root).dataset([share.file for share in shares], OPEN_SCHEMA)
        for batch in events.to_batches(use_threads=False, batch_readahead=1, fragment_readahead=1):
            if not days:
                yield from _in_buckets(batch, first, buckets)
                continue
            for day, of_day in by_day(pa.Table.from_batches([batch])):
                for part in of_day.to_batches():
                    yield from _in_buckets(part, *days.get(day, (first, buckets)))


def _assignment(share: FileShare) -> tuple[str, int, int, bool]:
    return share.root, share.first, share.buckets, bool(share.days)


def _in_buckets(batch: pa.RecordBatch, first: int, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    if buckets == 1:
        yield first, batch
        return
    bucket = _hashes(batch.column("id")) % np.uint64(buckets)
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket.astype(np.int64), minlength=buckets))
    ordered = batch.take(pa.array(order))
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end > start:
            yield first + number, ordered.slice(start, end - start)


def _serialized(events: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    # Mostly nulls and repeated words: a quarter of the bytes on their way through two pipes and a shuffle.
    with pa.ipc.new_stream(sink, events.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(events)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _hashes(column: Any) -> Any:
    """Return numbers that are the same for the same text in every process."""
    from pandas.util import hash_array

    return hash_array(column.to_numpy(zero_copy_only=False), categorize=False)


def newest_of(storage: Storage, files: Iterable[str]) -> int:
    """Return the time of the newest event in files, µs, from their footers; 0 where these do not tell."""
    newest = 0
    for file in files:
        metadata = storage.metadata(file)
        place = metadata.schema.to_arrow_schema().get_field_index("ts")
        for number in range(metadata.num_row_groups):
            statistics = metadata.row_group(number).column(place).statistics
            if statistics is not None and statistics.has_min_max:
                # Arrow gives times in UTC, some of its versions without saying so.
                newest = max(newest, round(statistics.max.replace(tzinfo=UTC).timestamp() * 1e6))
    return newest
