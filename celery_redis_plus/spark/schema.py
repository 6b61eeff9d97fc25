"""The schemas of tables, as Spark and as Arrow have them; each is declared once, as names with Spark's types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from celery_redis_plus.events import EVENT_COLUMNS

#: Spark's types of the kinds of `events.Column`.
TYPES = {"text": "string", "int": "int", "long": "bigint", "us": "timestamp", "ms": "timestamp", "bytes": "binary"}

#: Arrow's type of a time in a table.
MOMENT = pa.timestamp("us", tz="UTC")
_ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": MOMENT,
    "binary": pa.large_binary(),
}


def ddl(columns: Mapping[str, str]) -> str:
    """Return a schema as a DDL string."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def arrow(columns: Mapping[str, str]) -> pa.Schema:
    """Return a schema as Arrow has it."""
    return pa.schema([pa.field(name, _ARROW[kind]) for name, kind in columns.items()])


#: The columns of the source and of the table `events`, as a DDL string.
EVENTS_DDL = ddl({column.name: TYPES[column.kind] for column in EVENT_COLUMNS})
