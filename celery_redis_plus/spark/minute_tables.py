"""Keeps `queues`, `tasks` and `workers` up to date: only the minutes that new events touch are made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.spark.arrow_columns import by_day, ints
from celery_redis_plus.spark.layers import LAYOUTS, Layers, among
from celery_redis_plus.spark.manifest import PARTIALS, Manifest
from celery_redis_plus.spark.minute_aggregates import PARTIAL_MINUTE, PER_MINUTE, combined
from celery_redis_plus.spark.schema import MOMENT

if TYPE_CHECKING:
    from datetime import date

    from pyarrow import parquet

    from celery_redis_plus.spark.storage import Storage


class MinuteTables:
    """The tables per minute of a manifest that is being made."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    def add(self, partials: Sequence[str]) -> list[str]:
        """Add partial minutes, of new events only; return the days that changed."""
        source = self.layers.storage.dataset(partials, PARTIAL_MINUTE)
        days = sorted(source.to_table(columns=["minute"]).column("minute").cast(pa.date32()).unique().to_pylist())
        queues, changes = [], []
        for day in days:
            rows = source.to_table(
                filter=(pc.field("minute") >= _begin(day)) & (pc.field("minute") < _begin(day + timedelta(days=1)))
            )
            found = self._combined(day.isoformat(), rows)
            self.layers.add(PARTIALS, day.isoformat(), rows)
            self.layers.tidy(PARTIALS, day.isoformat())
            for table in ("tasks", "workers"):
                self._replace(table, day.isoformat(), _of_table(found, table))
            queues.append(_of_table(found, "queues"))
            changes.append(rows.filter(pc.equal(rows.column("table"), "queues")).select(["key", "backlog_change"]))
        self._replace_queues(pa.concat_tables(queues), self._levels(pa.concat_tables(changes)))
        return [day.isoformat() for day in days]

    def _combined(self, day: str, rows: pa.Table) -> pa.Table:
        """Return the minutes of `rows` with everything that happened in them."""
        near = among("minute", rows.column("minute").unique())
        before = self.layers.read(PARTIALS, self.layers.files(PARTIALS, day), near)
        return pa.Table.from_batches(combined(iter(pa.concat_tables([before, rows]).to_batches())))

    def _replace(self, table: str, day: str, rows: pa.Table) -> None:
        """Put rows in the place of those of their minutes."""
        if not rows.num_rows:
            return
        minutes = rows.column("minute").unique()
        first, last = pc.min(minutes).as_py(), pc.max(minutes).as_py()
        touched = self._overlapping(table, day, first, last)
        before = self.layers.read(table, touched)
        kept = before.filter(pc.invert(pc.is_in(before.column("minute"), minutes)))
        self.layers.replace(table, day, touched, pa.concat_tables([kept, rows]))
        self.layers.tidy(table, day)

    def _replace_queues(self, rows: pa.Table, levels: Mapping[str, int]) -> None:
        """Put the minutes of queues in the place of those that were: a change moves the backlog of all later minutes."""
        schema, layers = LAYOUTS["queues"].schema, self.layers
        minutes = rows.column("minute").unique()
        first = pc.min(minutes)
        kept, again = [schema.empty_table()], [rows]
        for day in sorted(day for day in layers.dated("queues") if day >= first.as_py().date().isoformat()):
            touched = self._overlapping("queues", day, first.as_py(), None)
            before = layers.read("queues", touched)
            layers.drop("queues", day, touched)
            later = pc.greater_equal(before.column("minute"), first)
            kept.append(before.filter(pc.invert(later)))
            untouched = pc.and_(later, pc.invert(pc.is_in(before.column("minute"), minutes)))
            again.append(before.filter(untouched).drop_columns(["backlog"]))
        whole = pa.concat_tables([*kept, with_backlog(pa.concat_tables(again), levels)])
        for date, of_day in by_day(whole):
            layers.add("queues", date, of_day)
            layers.tidy("queues", date)

    def _levels(self, changes: pa.Table) -> dict[str, int]:
        """Return the ready messages of each queue after all events, and keep them for the next time."""
        storage, manifest = self.layers.storage, self.layers.manifest
        levels = last_backlogs(storage, manifest)
        for row in changes.group_by("key").aggregate([("backlog_change", "sum")]).to_pylist():
            levels[row["key"]] = levels.get(row["key"], 0) + row["backlog_change_sum"]
        columns = {"queue": pa.array(list(levels), pa.string()), "backlog": pa.array(list(levels.values()), pa.int64())}
        manifest.backlogs = self.layers.new_file("backlogs", "all")
        storage.write_table(manifest.backlogs, pa.table(columns))
        return levels

    def _overlapping(self, table: str, day: str, first: datetime, last: datetime | None) -> list[str]:
        """Return the files of a day that have minutes between two; None is no end."""
        storage = self.layers.storage
        return [file for file in self.layers.files(table, day) if _overlaps(storage.metadata(file), first, last)]


def last_backlogs(storage: Storage, manifest: Manifest) -> dict[str, int]:
    """Return the ready messages of each queue after the last event."""
    return {row["queue"]: row["backlog"] for row in storage.table(manifest.backlogs).to_pylist()} if manifest.backlogs else {}


def with_backlog(minutes: pa.Table, levels: Mapping[str, int]) -> pa.Table:
    """Return rows of `queues` with the column `backlog`: the ready messages at each minute's end.

    Args:
        minutes: rows of queues, among them all from their first minute on.
        levels: the ready messages of each queue after its last minute.
    """
    ordered = minutes.sort_by([("queue", "ascending"), ("minute", "ascending")])
    queues = ordered.column("queue").combine_chunks()
    names = pc.unique(queues)
    code = ints(pc.index_in(queues, names))
    total = np.cumsum(ints(ordered.column("backlog_change")))
    ends = np.searchsorted(code, np.arange(len(names)), side="right") - 1
    after = np.array([levels.get(name, 0) for name in names.to_pylist()], dtype=np.int64)
    # What it is at last, without what changes later.
    return ordered.append_column("backlog", pa.array(after[code] - (total[ends][code] - total), pa.int64()))


def _of_table(found: pa.Table, table: str) -> pa.Table:
    """Return the rows of `queues`, `tasks` or `workers`; of `queues` without the backlog."""
    own = found.filter(pc.equal(found.column("table"), table)).drop_columns(["table"])
    own = own.rename_columns([PER_MINUTE[table] if name == "key" else name for name in own.column_names])
    return own.append_column("date", own.column("minute").cast(pa.date32()))


def _overlaps(metadata: parquet.FileMetaData, first: datetime, last: datetime | None) -> bool:
    """Return whether a file has minutes between two, from its footer; None is no end."""
    place = metadata.schema.to_arrow_schema().get_field_index("minute")
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        least, most = (value.replace(tzinfo=UTC) for value in (statistics.min, statistics.max))
        if most >= first and (last is None or least <= last):
            return True
    return False


def _begin(day: date) -> pa.Scalar:
    return pa.scalar(datetime(day.year, day.month, day.day, tzinfo=UTC), MOMENT)
