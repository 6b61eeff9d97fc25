"""The files of a table's day: how they are written, read, replaced and put together. Plain Arrow, no Spark.

An aggregation adds a file to a day, or replaces the files that it changes. When there are many, the small ones are put into one:
each file is then at least as large as all smaller ones together, so a row is rewritten a few times only, whatever the number of
aggregations, and a day has few files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, parquet

from celery_redis_plus.event_log.batches import arrow_schema
from celery_redis_plus.spark.manifest import OPEN, PARTIALS, UNFINISHED, Dated, Manifest
from celery_redis_plus.spark.message_timelines import MESSAGE_SCHEMA
from celery_redis_plus.spark.minute_aggregates import PARTIAL_MINUTE, PER_MINUTE, minute_schema
from celery_redis_plus.spark.repartition import OPEN_SCHEMA

#: More files of a day than this are put together.
MANY_FILES = 8
#: Rows that are sorted in memory at once, and what they may weigh.
ROWS_AT_ONCE, BYTES_AT_ONCE = 500_000, 64 * 1024 * 1024
#: Rows of a row group: readers of some messages or minutes skip the others.
ROWS_A_GROUP = 50_000

EVENTS = "events"


@dataclass(frozen=True)
class Layout:
    """How the files of a table look.

    Attributes:
        schema: the columns.
        order: those by which the rows are sorted.
        rows: how many a file has at most, about; one of so many is left as it is.
    """

    schema: pa.Schema
    order: tuple[str, ...]
    rows: int = 500_000


LAYOUTS = {
    # A message's events together and in order: they compress better, and reads of one queue skip the others.
    EVENTS: Layout(arrow_schema().append(pa.field("date", pa.date32())), ("queue", "epoch", "n"), rows=2_000_000),
    # Ids begin with the time of publishing.
    "messages": Layout(MESSAGE_SCHEMA, ("id",)),
    UNFINISHED: Layout(MESSAGE_SCHEMA, ("id",)),
    OPEN: Layout(OPEN_SCHEMA, ("queue", "epoch", "n")),
    PARTIALS: Layout(PARTIAL_MINUTE, ("minute",)),
    **{table: Layout(minute_schema(table), ("minute", key)) for table, key in PER_MINUTE.items()},
}


class Layers:
    """The tables of a manifest that is being made: what is written counts when the manifest is.

    Args:
        root: the folder.
        manifest: the next one; it is changed.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.manifest = manifest

    def dated(self, table: str) -> Dated:
        """Return the files of a table by day."""
        return self.manifest.events if table == EVENTS else self.manifest.tables[table]

    def paths(self, table: str, date: str) -> list[Path]:
        """Return the files of a day."""
        return [self.root / file for file in self.dated(table).get(date, ())]

    def add(self, table: str, date: str, rows: pa.Table) -> None:
        """Add rows to a day."""
        if rows.num_rows:
            path = new_file(self.root, table, self.manifest.version, date)
            write(path, rows, LAYOUTS[table])
            self.take(table, date, [path])

    def take(self, table: str, date: str, paths: Sequence[Path]) -> None:
        """Let files that are written count."""
        if paths:
            self.dated(table).setdefault(date, []).extend(path.relative_to(self.root).as_posix() for path in paths)

    def drop(self, table: str, date: str, paths: Sequence[Path]) -> None:
        """Let files no longer count."""
        gone = {path.relative_to(self.root).as_posix() for path in paths}
        kept = [file for file in self.dated(table).get(date, ()) if file not in gone]
        self.dated(table).pop(date, None)
        if kept:
            self.dated(table)[date] = kept

    def replace(self, table: str, date: str, paths: Sequence[Path], rows: pa.Table) -> None:
        """Put rows in the place of files."""
        self.drop(table, date, paths)
        self.add(table, date, rows)

    def tidy(self, table: str, date: str, *, most: int = MANY_FILES) -> None:
        """Put small files of a day together if it has more than `most`; `most=1` leaves one, or full ones and the rest."""
        small = sorted((row_count(path), path) for path in self.paths(table, date))
        if len(small) <= most:
            return
        whole, together = 0, 0
        for place, (rows, _) in enumerate(small):
            # With `most=1`, each but full ones.
            if (most > 1 and place > 1 and rows >= whole) or rows >= LAYOUTS[table].rows:
                break
            whole, together = whole + rows, place + 1
        chosen = [path for _, path in small[:together]]
        if len(chosen) < 2:
            return
        # In the order in which they came: what follows in time stays near.
        before = [path for path in self.paths(table, date) if path in set(chosen)]
        targets = merge(before, LAYOUTS[table], lambda: new_file(self.root, table, self.manifest.version, date))
        self.drop(table, date, before)
        self.take(table, date, targets)


def new_file(root: Path, table: str, version: int, date: str) -> Path:
    """Return the path of a file that is not there yet."""
    return root / table / f"v{version:08}" / f"day={date}" / f"{uuid.uuid4().hex}.parquet"


def row_count(path: Path) -> int:
    """Return how many rows a Parquet file has, from its footer."""
    rows: int = parquet.read_metadata(path).num_rows
    return rows


def write(path: Path, rows: pa.Table, layout: Layout) -> None:
    """Write rows, sorted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with parquet.ParquetWriter(path, layout.schema, compression="zstd") as writer:
        _write_sorted(writer, rows, layout)


def read(
    paths: Sequence[Path], schema: pa.Schema, wanted: dataset.Expression | None = None, columns: Sequence[str] | None = None
) -> pa.Table:  # fmt: skip
    """Return rows of files, or some of their columns; one that an older release did not write is null."""
    if not paths:
        return schema.empty_table().select(columns or schema.names)
    source = dataset.dataset([str(path) for path in paths], schema=schema, format="parquet")
    table: pa.Table = source.to_table(filter=wanted, columns=list(columns) if columns else None)
    return table


def message_keys(rows: pa.Table) -> pa.ChunkedArray:
    """Return of each row what its message is known by: ids of two queues may be equal."""
    return pc.binary_join_element_wise(rows.column("queue"), rows.column("id"), "\n")


def merge(paths: Sequence[Path], layout: Layout, target: Callable[[], Path]) -> list[Path]:
    """Write the rows of files into as few as there may be, without having all of them in memory; return those.

    Args:
        paths: the files.
        layout: of their table.
        target: returns the path of a new file.
    """
    written: list[Path] = []
    writer: parquet.ParquetWriter | None = None
    rows = 0
    try:
        for portion in _portions(paths, layout.schema):
            if writer is None or rows + portion.num_rows > layout.rows:
                if writer is not None:
                    writer.close()
                path = target()
                path.parent.mkdir(parents=True, exist_ok=True)
                written.append(path)
                writer, rows = parquet.ParquetWriter(path, layout.schema, compression="zstd"), 0
            _write_sorted(writer, portion, layout)
            rows += portion.num_rows
    finally:
        if writer is not None:
            writer.close()
    return written


def _write_sorted(writer: parquet.ParquetWriter, rows: pa.Table, layout: Layout) -> None:
    ordered = rows.select(layout.schema.names).cast(layout.schema).sort_by([(name, "ascending") for name in layout.order])
    writer.write_table(ordered, row_group_size=ROWS_A_GROUP)


def _portions(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files, as many as may be in memory."""
    held: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for path in paths:
        source = dataset.dataset(str(path), schema=schema, format="parquet")
        for batch in source.to_batches(
            batch_size=_rows_to_read(path), use_threads=False, batch_readahead=1, fragment_readahead=1
        ):
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield pa.Table.from_batches(held, schema=schema)
                held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema=schema)


def _rows_to_read(path: Path) -> int:
    """Return how many rows are read at once: a payload may have 1 MB."""
    metadata = parquet.read_metadata(path)
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    fitting: int = BYTES_AT_ONCE // 2 * max(1, metadata.num_rows) // max(1, size)
    return max(1, min(65_536, fitting))
