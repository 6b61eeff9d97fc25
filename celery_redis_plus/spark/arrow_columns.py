"""Arrow's columns as plain arrays, and back into tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.spark.schema import MOMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray


def plain(column: Any, kind: pa.DataType) -> pa.Array:
    """Return a column as one array of `kind`."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.cast(kind)


def as_table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return a table of `schema`, made of columns that can be cast to it."""
    return pa.table([plain(columns[field.name], field.type) for field in schema], schema=schema)


def ints(column: Any) -> NDArray[np.int64]:
    """Return a column of whole numbers."""
    return np.asarray(column.to_numpy(), dtype=np.int64)


def microseconds(times: Any) -> NDArray[np.int64]:
    """Return a column of times as µs since the epoch; 0 where there is none."""
    return ints(pc.fill_null(times.cast(MOMENT).cast(pa.int64()), 0))
