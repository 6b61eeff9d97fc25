"""The event schema as Spark has it."""

from __future__ import annotations

from celery_redis_plus.events import COLUMNS

_TYPES = {"text": "string", "int": "int", "long": "bigint", "us": "timestamp", "ms": "timestamp", "bytes": "binary"}

#: The columns of the source and of the table `events`, as a DDL string.
EVENTS_DDL = ", ".join(f"`{column.name}` {_TYPES[column.kind]}" for column in COLUMNS)
