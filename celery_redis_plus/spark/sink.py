"""The sink `celery_task`: a task per row, each row once, whatever Spark repeats.

A task's id follows from `sinkName` and the row's id, never from a batch's number or a row's place: a retried Spark task knows
neither. The broker refuses an id that it knows (`transport/once_sender.py`), in the step that stores the message.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import TimestampNTZType

from celery_redis_plus.broker.publishing.publish_batch import MESSAGES_A_CALL
from celery_redis_plus.errors import InvalidArgument, OptionError
from celery_redis_plus.spark.older_pyspark import DataSourceStreamArrowWriter
from celery_redis_plus.spark.sink_options import SinkOptions
from celery_redis_plus.transport.once_sender import OnceSender

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

#: What task ids are derived under.
NAMESPACE = uuid.UUID("8c5a2f4e-52c1-5d0e-9c55-4f0f1f1a6c11")
#: The fourth part of a body in Celery's message protocol 2.
#: Source: https://docs.celeryq.dev/en/stable/internals/protocol.html
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


@dataclass
class Sent(WriterCommitMessage):
    """How many rows a Spark task has sent, and how many of them the broker knew already."""

    rows: int
    known: int


class CeleryTaskSink(DataSource):
    """Tasks: `frame.write.format("celery_task").option("task", "shop.bill").option("idColumn", "id")...`, or `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "celery_task"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer."""
        if overwrite:
            raise InvalidArgument("celery_task only adds tasks; write with mode('append')")
        return Writer(checked(self.options, schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002 - as above
        """Return the stream writer."""
        return StreamWriter(checked(self.options, schema), schema)


def checked(given: Mapping[str, Any], schema: StructType) -> SinkOptions:
    """Return the options that a write was given, for rows of a schema.

    Raises:
        OptionError: one is not allowed; the message says what is.
    """
    options = SinkOptions.from_mapping(given)
    for column in options.columns():
        if column not in schema.fieldNames():
            raise OptionError(f"there is no column {column!r}; columns: {', '.join(schema.fieldNames())}")
    return options


class _TaskWriter:
    """Sends the rows of batch and stream writers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        #: Columns of times without a zone. In rows, Spark gives Python other times in the machine's zone, also without naming it.
        self.utc = frozenset(field.name for field in schema.fields if isinstance(field.dataType, TimestampNTZType))

    def write(self, iterator: Iterator[pa.RecordBatch | Row]) -> WriterCommitMessage:
        """Send a task for each row of a partition."""
        return sent(rows_of(iterator), self.options, self.utc)

    def commit(self, messages: Any, *batch: int) -> None:  # noqa: ARG002 - Spark gives the signature
        """Tell of rows that were not sent, as the broker knew them; there is nothing to commit.

        This runs in a process of Spark's, where nobody has set up logging: warnings go to the driver's standard error. Spark
        takes no figures of a Python writer into a query's progress; `sending.py` gives it some.
        """
        done = [message for message in messages if message is not None]
        rows, known = sum(message.rows for message in done), sum(message.known for message in done)
        if known:
            logger.warning("celery_task: %d of %d rows were not sent: the broker knew their ids", known, rows)

    def abort(self, messages: Any, *batch: int) -> None:
        """Do nothing: the broker refuses rows that are sent again."""


class Writer(_TaskWriter, DataSourceArrowWriter):
    """Writes a batch."""


class StreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """Writes micro-batches."""


def rows_of(parts: Iterator[pa.RecordBatch | Row]) -> Iterator[Mapping[str, Any]]:
    """Yield rows by column, of batches, or of the rows that Spark 4.0 hands to streams."""
    for part in parts:
        if isinstance(part, pa.RecordBatch):
            yield from part.to_pylist(maps_as_pydicts="strict")
        else:
            yield part.asDict(recursive=True)


def sent(rows: Iterator[Mapping[str, Any]], options: SinkOptions, utc: Collection[str] = ()) -> Sent:
    """Send a task for each row of a partition, by column; arguments as of `task_message`."""
    begun, limit = time.monotonic(), options.rate_limit
    # With a limit, no row waits for others for more than a second.
    batch = MESSAGES_A_CALL if limit is None else min(MESSAGES_A_CALL, max(1, int(limit)))
    sender = OnceSender(
        options.resolved_url(), prefix=options.prefix, remember_s=options.dedup_ttl, patience_s=options.patience, batch=batch
    )
    with sender:
        for count, row in enumerate(rows, 1):
            queue, identity, body, headers, properties = task_message(row, options, utc)
            sender.send(queue, identity, body, headers=headers, properties=properties)
            if limit:
                time.sleep(max(0.0, begun + count / limit - time.monotonic()))
    return Sent(sender.stored + sender.known, sender.known)


def task_message(
    values: Mapping[str, Any], options: SinkOptions, utc: Collection[str] = ()
) -> tuple[str, str, str, dict[str, Any], dict[str, Any]]:
    """Return (queue, task id, body, headers, properties) of a row's task, in Celery's message protocol 2.

    Args:
        values: of a row, by column.
        options: say what its columns mean.
        utc: columns whose times have no zone.

    Raises:
        InvalidArgument: the row has no id, or arguments that are none.
    """
    name = values[options.task_column] if options.task_column else options.task
    queue = values[options.queue_column] if options.queue_column else options.queue
    if values[options.id_column] is None or not name or not queue:
        raise InvalidArgument(f"a row has no id, task or queue: {values!s:.200}")
    task_id = str(uuid.uuid5(NAMESPACE, f"{options.sink_name or name}:{_identity(values[options.id_column])}"))
    args = _arguments(values, options.args_column, list)
    kwargs = _arguments(values, options.kwargs_column, dict)
    eta, expires = (
        _utc(values[column], utc=column in utc) if column else None for column in (options.eta_column, options.expires_column)
    )
    # The sink's own deduplication is that by which a row is sent once.
    further = {
        name: value
        for name, value in _arguments(values, options.headers_column, dict).items()
        if not name.startswith("x-deduplication-")
    }
    headers = {
        **further,
        "lang": "py",
        "task": name,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": values[options.group_column] if options.group_column else None,
        "retries": 0,
        "timelimit": [None, None],
        "eta": _later(values[options.countdown_column]) if options.countdown_column else eta,
        "expires": _later(expires),
        "argsrepr": f"{args!r:.200}",
        "kwargsrepr": f"{kwargs!r:.200}",
        "origin": f"spark{os.getpid()}@{socket.gethostname()}",
    }
    properties: dict[str, Any] = {"correlation_id": task_id, "reply_to": ""}
    if options.priority_column and values[options.priority_column] is not None:
        properties["priority"] = int(values[options.priority_column])
    return queue, task_id, json.dumps([args, kwargs, _EMBED], default=_plain), headers, properties


def _identity(value: Any) -> str:
    """Return a row's id, which is the same in each session: Spark gives times in the session's zone."""
    return _plain(value) if isinstance(value, datetime) else str(value)


def _arguments(values: Mapping[str, Any], column: str, kind: type) -> Any:
    value = values[column] if column else None
    if value is None:
        return kind()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, kind):
        raise InvalidArgument(f"column {column!r} has {values[column]!r:.100}; allowed: a {kind.__name__}, or JSON of one")
    return value


def _utc(value: Any, *, utc: bool) -> Any:
    """Return a time as ISO 8601 in UTC; what is none, or cannot be read, as it is: the broker refuses it."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        utc = True
    if not isinstance(moment, datetime):
        return value
    # A time with a zone has one; of the others, Spark gives Python those of TIMESTAMP in the machine's zone.
    return (moment.replace(tzinfo=UTC) if utc and moment.tzinfo is None else moment.astimezone(UTC)).isoformat()


def _later(value: Any) -> Any:
    """Return a number of seconds from now as a time; anything else as it is."""
    seconds = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return (datetime.now(UTC) + timedelta(seconds=float(value))).isoformat() if seconds else value


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        raise InvalidArgument("arguments hold bytes, which JSON has no form for; encode the column first, as base64 for example")
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
