"""The files of a table's day: how they are written, read, replaced and put together. Plain Arrow, no Spark.

An aggregation adds a file to a day, or replaces the files that it changes. When there are many, the small ones are put into one:
each file is then at least as large as all smaller ones together, so a row is rewritten a few times only, whatever the number of
aggregations, and a day has few files.

New messages of 30 days with a few rows each would be 30 files of each aggregation, to be written and put together with others
soon. They are one file (`MIXED`), until there are enough of them (`Layers.divide`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.event_log.batches import arrow_schema
from celery_redis_plus.spark.arrow_columns import by_day
from celery_redis_plus.spark.manifest import MIXED, OPEN, PARTIALS, UNFINISHED, Dated, Manifest, dated_folder
from celery_redis_plus.spark.message_timelines import MESSAGE_SCHEMA
from celery_redis_plus.spark.minute_aggregates import PARTIAL_MINUTE, PER_MINUTE, minute_schema
from celery_redis_plus.spark.repartition import OPEN_SCHEMA

if TYPE_CHECKING:
    from pyarrow import dataset, parquet

    from celery_redis_plus.spark.storage import Storage

#: More files of a day than this are put together, so that this many remain at most: an aggregation touches many days, each by a
#: few rows, and need not write files of each of them anew.
MANY_FILES, FEW_FILES = 12, 8
#: Days with fewer rows and bytes share a file: to write 1,000 rows takes 1 ms of a processor, to make a file at least 2 ms.
FEW_ROWS, FEW_BYTES = 1000, 1024 * 1024
#: More rows under `MIXED` are put to their days.
MOST_MIXED = 10_000
#: Rows that are sorted in memory at once, and what they may weigh: sorting takes three times that. With twice as many, the memory
#: of a service grew by 15 % within 20 minutes at 500 tasks a second, as its files did.
ROWS_AT_ONCE, BYTES_AT_ONCE = 250_000, 32 * 1024 * 1024
#: Files of fewer bytes, before they are compressed, are read at once.
SMALL_BYTES = 4 * 1024 * 1024
#: Rows of a row group: readers of some messages or minutes skip the others.
ROWS_A_GROUP = 50_000
#: Bytes of a row group of `PARTIALS`. A row has each single wait and run of its minute: a day at 500 tasks a second has 2 GB in
#: some thousand rows, of which an aggregation reads the last minutes.
BYTES_A_GROUP = 4 * 1024 * 1024

EVENTS = "events"
#: A reader of `messages` reads both: they are in one folder, as a log of Delta Lake (`delta_log.py`) names files of one folder.
_FOLDERS = {UNFINISHED: "messages"}


@dataclass(frozen=True)
class Layout:
    """How the files of a table look.

    Attributes:
        schema: the columns.
        order: those by which the rows are sorted.
        rows: how many a file has at most, about; one of so many is left as it is.
        group_bytes: what a row group weighs at most, about; 0 is no bound.
    """

    schema: pa.Schema
    order: tuple[str, ...]
    rows: int = 500_000
    group_bytes: int = 0


LAYOUTS = {
    # A message's events together and in order: they compress better, and reads of one queue skip the others.
    EVENTS: Layout(arrow_schema().append(pa.field("date", pa.date32())), ("queue", "epoch", "n"), rows=2_000_000),
    # Ids begin with the time of publishing.
    "messages": Layout(MESSAGE_SCHEMA, ("id",)),
    # Small ones: an aggregation writes those anew that have a message with new events (`open_messages.py`).
    UNFINISHED: Layout(MESSAGE_SCHEMA, ("id",), rows=50_000),
    OPEN: Layout(OPEN_SCHEMA, ("id", "queue", "epoch", "n"), rows=50_000),
    PARTIALS: Layout(PARTIAL_MINUTE, ("minute",), group_bytes=BYTES_A_GROUP),
    **{table: Layout(minute_schema(table), ("minute", key)) for table, key in PER_MINUTE.items()},
}


class Layers:
    """The tables of a manifest that is being made: what is written counts when the manifest is.

    Args:
        storage: the place of the tables. The caller holds `TABLES_LOCK`.
        manifest: the next one; it is changed.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self.storage = storage
        self.manifest = manifest
        #: The folder of new files within each table's.
        self.folder = storage.version_folder(manifest.version)

    def dated(self, table: str) -> Dated:
        """Return the files of a table by day."""
        return self.manifest.events if table == EVENTS else self.manifest.tables[table]

    def files(self, table: str, date: str) -> list[str]:
        """Return the files of a day."""
        return list(self.dated(table).get(date, ()))

    def new_file(self, table: str, date: str) -> str:
        """Return the name of a file that is not there yet."""
        return new_file(self.folder, table, date)

    def read(
        self, table: str, files: Sequence[str], wanted: dataset.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return rows of files of a table, as `read` does."""
        return read(self.storage, files, LAYOUTS[table].schema, wanted, columns)

    def add(self, table: str, date: str, rows: pa.Table) -> None:
        """Add rows to a day."""
        if rows.num_rows:
            file = self.new_file(table, date)
            write(self.storage, file, rows, LAYOUTS[table])
            self.take(table, date, [file])

    def take(self, table: str, date: str, files: Sequence[str]) -> None:
        """Let files that are written count."""
        if files:
            self.dated(table).setdefault(date, []).extend(files)

    def drop(self, table: str, date: str, files: Sequence[str]) -> None:
        """Let files no longer count."""
        gone = set(files)
        kept = [file for file in self.dated(table).get(date, ()) if file not in gone]
        self.dated(table).pop(date, None)
        if kept:
            self.dated(table)[date] = kept

    def replace(self, table: str, date: str, files: Sequence[str], rows: pa.Table) -> None:
        """Put rows in the place of files."""
        self.drop(table, date, files)
        self.add(table, date, rows)

    def without(
        self,
        table: str,
        date: str,
        file: str,
        keys: pa.Array,
        key_of: Callable[[pa.Table], pa.ChunkedArray] | None = None,
    ) -> int:
        """Take the messages of `keys` (`message_keys`, or what `key_of` returns) out of a file; return how many rows went."""
        gone = 0

        def kept() -> Iterator[pa.Table]:
            nonlocal gone
            for portion in _portions(self.storage, [file], LAYOUTS[table].schema):
                rows = portion.filter(pc.invert(pc.is_in((key_of or message_keys)(portion), keys)))
                gone += portion.num_rows - rows.num_rows
                if rows.num_rows:
                    yield rows

        files = _written(self.storage, kept(), LAYOUTS[table], lambda: self.new_file(table, date))
        self.drop(table, date, [file])
        self.take(table, date, files)
        return gone

    def divide(self, table: str, *, few_too: bool = False) -> None:
        """Put the rows of `MIXED` to their days, if there are many."""
        files = self.files(table, MIXED)
        if not few_too and sum(map(self.storage.row_count, files)) <= MOST_MIXED:
            return
        for portion in _portions(self.storage, files, LAYOUTS[table].schema):
            for day, rows in by_day(portion):
                self.add(table, day, rows)
                self.tidy(table, day)
        self.drop(table, MIXED, files)

    def tidy(self, table: str, date: str, *, most: int = MANY_FILES) -> None:
        """Put small files of a day together if it has more than `most`, but for full ones; `most=1` leaves one."""
        files = self.files(table, date)
        if len(files) <= most:
            return
        small = sorted((self.storage.row_count(file), file) for file in files)
        whole, together = 0, 0
        for place, (rows, _) in enumerate(small):
            enough = most > 1 and place > len(files) - FEW_FILES
            if (enough and rows >= whole) or rows >= LAYOUTS[table].rows:
                break
            whole, together = whole + rows, place + 1
        chosen = {file for _, file in small[:together]}
        if len(chosen) < 2:
            return
        # In the order in which they came: what follows in time stays near.
        before = [file for file in files if file in chosen]
        targets = merge(self.storage, before, LAYOUTS[table], lambda: self.new_file(table, date))
        self.drop(table, date, before)
        self.take(table, date, targets)


def by_file(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each new file with what it is kept under: a day, or `MIXED` for several days with few rows each."""
    found = dict(by_day(rows))
    few = [day for day, of_day in found.items() if of_day.num_rows < FEW_ROWS and of_day.nbytes < FEW_BYTES]
    if len(few) > 1:
        yield MIXED, pa.concat_tables([found.pop(day) for day in few])
    yield from found.items()


def new_file(folder: str, table: str, date: str) -> str:
    """Return the name of a file that is not there yet."""
    return f"{_FOLDERS.get(table, table)}/{folder}/{dated_folder(date)}/{uuid.uuid4().hex}.parquet"


def write(storage: Storage, file: str, rows: pa.Table, layout: Layout) -> None:
    """Write rows, sorted."""
    with storage.writer(file, layout.schema) as writer:
        _write(writer, _sorted(rows, layout), layout)


def read(
    storage: Storage,
    files: Sequence[str],
    schema: pa.Schema,
    wanted: dataset.Expression | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return rows of files, or some of their columns; one that an older release did not write is null."""
    if not files:
        return schema.empty_table().select(columns or schema.names)
    source = storage.dataset(files, schema)
    table: pa.Table = source.to_table(filter=wanted, columns=list(columns) if columns else None)
    return table


def among(column: str, values: pa.Array | pa.ChunkedArray) -> dataset.Expression:
    """Return a condition that holds where a column has one of some values, of which there is one at least."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    # The bounds let Parquet's statistics skip what the list does not.
    bounds = pc.min_max(values)
    return (pc.field(column) >= bounds["min"]) & (pc.field(column) <= bounds["max"]) & pc.field(column).isin(values)


def message_keys(rows: pa.Table) -> pa.ChunkedArray:
    """Return of each row what its message is known by: ids of two queues may be equal."""
    return pc.binary_join_element_wise(rows.column("queue"), rows.column("id"), "\n")


def merge(storage: Storage, files: Sequence[str], layout: Layout, target: Callable[[], str]) -> list[str]:
    """Write the rows of files into as few as there may be, without having all of them in memory; return those.

    Args:
        storage: the place of the tables.
        files: the files.
        layout: of their table.
        target: returns the name of a new file.
    """
    metadata = map(storage.metadata, files)
    size = sum(footer.row_group(number).total_byte_size for footer in metadata for number in range(footer.num_row_groups))
    # One read is faster than one of each file.
    portions = iter([read(storage, files, layout.schema)]) if size < SMALL_BYTES else _portions(storage, files, layout.schema)
    return _written(storage, portions, layout, target)


def _written(storage: Storage, portions: Iterator[pa.Table], layout: Layout, target: Callable[[], str]) -> list[str]:
    written: list[str] = []
    writer: parquet.ParquetWriter | None = None
    rows = 0
    try:
        for piece in (piece for portion in portions for piece in _pieces(_sorted(portion, layout), layout.rows)):
            if writer is None or rows + piece.num_rows > layout.rows:
                if writer is not None:
                    writer.close()
                written.append(target())
                writer, rows = storage.writer(written[-1], layout.schema), 0
            _write(writer, piece, layout)
            rows += piece.num_rows
    finally:
        if writer is not None:
            writer.close()
    return written


def _sorted(rows: pa.Table, layout: Layout) -> pa.Table:
    return rows.select(layout.schema.names).cast(layout.schema).sort_by([(name, "ascending") for name in layout.order])


def _pieces(ordered: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield rows in pieces of `most` or some more, but fewer than twice as many; fewer than `most` in one."""
    count = max(1, ordered.num_rows // most)
    ends = [ordered.num_rows * place // count for place in range(count + 1)]
    return (ordered.slice(first, end - first) for first, end in pairwise(ends))


def _write(writer: parquet.ParquetWriter, ordered: pa.Table, layout: Layout) -> None:
    group = ROWS_A_GROUP
    if layout.group_bytes:
        group = max(1, min(group, layout.group_bytes * ordered.num_rows // max(1, ordered.nbytes)))
    writer.write_table(ordered, row_group_size=group)


def _portions(storage: Storage, files: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files, as many as may be in memory."""
    held: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for file in files:
        source = storage.dataset([file], schema)
        for batch in source.to_batches(
            batch_size=_rows_to_read(storage.metadata(file)), use_threads=False, batch_readahead=1, fragment_readahead=1
        ):
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield pa.Table.from_batches(held, schema=schema)
                held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema=schema)


def _rows_to_read(metadata: parquet.FileMetaData) -> int:
    """Return how many rows are read at once: a payload may have 1 MB."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    fitting: int = BYTES_AT_ONCE // 2 * max(1, metadata.num_rows) // max(1, size)
    return max(1, min(65_536, fitting))
