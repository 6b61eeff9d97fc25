"""Reads the tables as they are at one moment, all by one manifest. Plain Arrow, no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS
from celery_redis_plus.spark.losses import LOSS_COLUMNS, rows_of
from celery_redis_plus.spark.manifest import CHECKS, MIXED, UNFINISHED, Manifest, event_files, names
from celery_redis_plus.spark.minute_tables import last_backlogs
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.schema import arrow

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from pyarrow import dataset

    from celery_redis_plus.spark.storage import Storage

#: From the first to the last day, as the names of folders are ordered.
EVERY_DAY = ("", "~")


class Snapshot:
    """The tables of a folder.

    Their files stay for a quarter of an hour, also where an aggregation replaces them meanwhile.

    Args:
        root: the folder, or the URL.

    Raises:
        TablesUnusable: there are none yet.
    """

    def __init__(self, root: str | Path | Storage) -> None:
        self.storage = opened(root)
        self.manifest = Manifest.read(self.storage)
        self._events = event_files(self.storage, self.manifest)
        self.manifest.check_built(self.storage)

    def files(self, table: str) -> list[str]:
        """Return the Parquet files of a table, as `manifest.files` does; those at a URL are URLs.

        Raises:
            TablesUnusable: there is no such table.
        """
        return [f"{self.storage}/{name}" for name in names(self.storage, self.manifest, self._events, table)]

    def checks(self) -> pa.Table | None:
        """Return what the last check has found; None where there was none."""
        try:
            self.files("checks")
        except TablesUnusable:
            return None
        return self.storage.table(CHECKS)

    def read(
        self,
        table: str,
        columns: Sequence[str],
        wanted: dataset.Expression | None = None,
        days: tuple[str, str] = EVERY_DAY,
    ) -> pa.Table:
        """Return columns of rows of a table; one that an older release did not write is null.

        Words that repeat are a dictionary, so that a row takes few bytes.

        Args:
            table: its name.
            columns: those that are read.
            wanted: which rows; those where it is null are not.
            days: the first and the last day whose files are looked at, and those with rows of any day.
        """
        schema = pa.schema([LAYOUTS[table].schema.field(name) for name in columns])
        words = [name for name in columns if schema.field(name).type == pa.string()]
        batches = []
        for batch in self.batches(table, columns, wanted, days):
            for name in words:
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(place, name, batch.column(place).dictionary_encode())  # noqa: PLW2901 - the same rows
            batches.append(batch)
        for name in words:
            place = schema.get_field_index(name)
            schema = schema.set(place, pa.field(name, pa.dictionary(pa.int32(), pa.string())))
        return pa.Table.from_batches(batches, schema=schema).unify_dictionaries()

    def batches(
        self, table: str, columns: Sequence[str], wanted: dataset.Expression | None = None, days: tuple[str, str] = EVERY_DAY
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same by portions, as they are in the files."""
        if found := self._names(table, days):
            source = self.storage.dataset(found, LAYOUTS[table].schema)
            for batch in source.to_batches(columns=list(columns), filter=wanted):
                if batch.num_rows:
                    yield batch

    def dataset(self, table: str) -> dataset.Dataset | None:
        """Return all files of a table as one data set; None where it has none."""
        found = self._names(table, EVERY_DAY)
        return self.storage.dataset(found, LAYOUTS[table].schema) if found else None

    def days(self, table: str, since: str = "") -> list[str]:
        """Return the days of which a table per minute has files, in their order, from one on."""
        return sorted(day for day, files in self.manifest.tables[table].items() if files and day >= since)

    def first_and_last_day(self, table: str) -> list[str]:
        """Return the ends of these days: one or two, or none."""
        days = self.days(table)
        return sorted({days[0], days[-1]}) if days else []

    def backlogs(self) -> dict[str, int]:
        """Return the ready messages of each queue after the last event."""
        return last_backlogs(self.storage, self.manifest)

    def losses(self) -> pa.Table:
        """Return the table `losses`."""
        if not self.manifest.losses:
            return arrow(LOSS_COLUMNS).empty_table()
        return rows_of(self.storage, self.manifest.losses)

    def _names(self, table: str, days: tuple[str, str]) -> list[str]:
        manifest = self.manifest
        dated = self._events if table == EVENTS else manifest.tables[table]
        found = [file for date, files in sorted(dated.items()) if days[0] <= date <= days[1] or date == MIXED for file in files]
        return found + ([file for files in manifest.tables[UNFINISHED].values() for file in files] if table == "messages" else [])


def frame(table: pa.Table) -> pd.DataFrame:
    """Return rows for pandas: times are UTC, without a zone; words are words."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us"))
        elif pa.types.is_dictionary(field.type):
            column = column.cast(pa.string())
        table = table.set_column(place, field.name, column)
    return table.to_pandas()


def codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """Return of each row the place of its word among the words, -1 where it has none; and the words."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return np.asarray(pc.fill_null(array.indices, -1).to_numpy(), dtype=np.int64), array.dictionary.to_pylist()
