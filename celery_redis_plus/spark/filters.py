"""Filters that Spark hands over: which queues and times need to be read at all, and which rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pyspark.sql import datasource as spark

if TYPE_CHECKING:
    import pyarrow as pa

#: The server's clock may have been set back by so much without a row being missed.
CLOCK_MARGIN_MS = 60_000

_COMPARISONS = {
    getattr(spark, name): compare
    for name, compare in {
        "EqualTo": pc.equal,
        "GreaterThan": pc.greater,
        "GreaterThanOrEqual": pc.greater_equal,
        "LessThan": pc.less,
        "LessThanOrEqual": pc.less_equal,
    }.items()
    # PySpark 4.0 hands no filters over.
    if hasattr(spark, name)
}


@dataclass
class Pushed:
    """What a query's filters say. Spark still applies every filter: these only save reading and moving rows."""

    queues: set[str] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    #: (column, comparison, value) that each row must meet.
    rows: list[tuple[str, type, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, filters: Iterable[Any]) -> Pushed:
        """Return what can be used of `filters`."""
        pushed = cls()
        for entry in filters:
            if len(getattr(entry, "attribute", ())) == 1:
                pushed._add(entry.attribute[0], entry)
        return pushed

    def _add(self, column: str, entry: Any) -> None:
        if isinstance(entry, spark.In):
            self.rows.append((column, spark.In, tuple(entry.value)))
            if column == "queue":
                self._only({str(value) for value in entry.value})
        elif type(entry) in _COMPARISONS:
            self.rows.append((column, type(entry), entry.value))
            if column == "queue" and isinstance(entry, spark.EqualTo):
                self._only({str(entry.value)})
            elif column == "ts" and isinstance(entry.value, datetime):
                self._bound(entry)

    def _only(self, queues: set[str]) -> None:
        self.queues = queues if self.queues is None else self.queues & queues

    def _bound(self, entry: Any) -> None:
        ms = int(entry.value.timestamp() * 1000)
        if isinstance(entry, spark.EqualTo | spark.GreaterThan | spark.GreaterThanOrEqual):
            self.from_ms = max(self.from_ms or 0, ms - CLOCK_MARGIN_MS)
        if isinstance(entry, spark.EqualTo | spark.LessThan | spark.LessThanOrEqual):
            self.to_ms = min(self.to_ms or 1 << 62, ms + CLOCK_MARGIN_MS)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` that meet every filter."""
        return apply(batch, self.rows)


def apply(batch: pa.RecordBatch, rows: Sequence[tuple[str, type, Any]]) -> pa.RecordBatch:
    """Return the rows of `batch` that meet all of `rows`."""
    for column, comparison, value in rows:
        values = batch.column(column)
        if comparison is spark.In:
            import pyarrow as pa

            mask = pc.is_in(values, pa.array([item for item in value if item is not None], values.type))
        else:
            mask = _COMPARISONS[comparison](values, _scalar(value, values.type))
        batch = batch.filter(mask)
    return batch


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(value, kind)
