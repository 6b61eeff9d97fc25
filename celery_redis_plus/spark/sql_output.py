"""Writes the rows of a query as text that keeps their values: times with zone and microseconds, whole numbers whole."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa


def as_text(table: pa.Table, form: str) -> str:
    """Return the rows of `table` in the form `json` (an object a line), `csv`, or else as a table for people.

    A name that several columns have gets a number from the second on, as in DuckDB: `queue`, `queue_1`.
    """
    names, rows = list(_distinct(table.column_names)), _rows(table)
    if form == "json":
        return "\n".join(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows)
    cells = [["" if value is None else value if isinstance(value, str) else json.dumps(value) for value in row] for row in rows]
    if form == "csv":
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([names, *cells])
        return file.getvalue().rstrip("\n")
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = (zip(line, widths, strict=True) for line in [names, *cells])
    return "\n".join("  ".join(cell.rjust(width) for cell, width in line) for line in lines)


def _distinct(names: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        number, found = 0, name
        while found in seen:
            number += 1
            found = f"{name}_{number}"
        seen.add(found)
        yield found


def _rows(table: pa.Table) -> list[list[Any]]:
    columns = [[_plain(value) for value in _in_microseconds(column).to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _in_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as Python has them; other values as they are."""
    is_time = pa.types.is_timestamp(column.type)
    return column.cast(pa.timestamp("us", column.type.tz), safe=False) if is_time else column


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case dict():
            found: Any = {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            found = [_plain(each) for each in value]
        case Decimal():
            found = int(value) if value == value.to_integral_value() else float(value)
        case float():
            found = value if math.isfinite(value) else None
        case date() | time():
            found = value.isoformat()
        case bytes():
            found = value.decode("utf-8", "backslashreplace")
        case bool() | int() | str() | None:
            found = value
        case _:
            found = str(value)
    return found
