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
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from celery_redis_plus.errors import InvalidArgument, OptionError
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
        return Writer(_checked(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002 - as above
        """Return the stream writer."""
        return StreamWriter(_checked(self.options, schema))


def _checked(given: Any, schema: StructType) -> SinkOptions:
    options = SinkOptions.from_mapping(given)
    for column in (
        options.id_column,
        options.task_column,
        options.queue_column,
        options.args_column,
        options.kwargs_column,
        options.priority_column,
        options.eta_column,
    ):
        if column and column not in schema.fieldNames():
            raise OptionError(f"there is no column {column!r}; columns: {', '.join(schema.fieldNames())}")
    return options


class _TaskWriter:
    """Sends the rows of batch and stream writers."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send a task for each row of a partition."""
        options = self.options
        rows, known, begun = 0, 0, time.monotonic()
        sender = OnceSender(
            options.resolved_url(), prefix=options.prefix, remember_s=options.dedup_ttl, patience_s=options.patience
        )
        with sender:
            for row in iterator:
                queue, identity, body, headers, properties = task_message(row, options)
                known += not sender.send(queue, identity, body, headers=headers, properties=properties)
                rows += 1
                if options.rate_limit:
                    time.sleep(max(0.0, begun + rows / options.rate_limit - time.monotonic()))
        return Sent(rows, known)

    def commit(self, messages: Any, *batch: int) -> None:  # noqa: ARG002 - Spark gives the signature
        """Log what was sent; there is nothing to commit."""
        done = [message for message in messages if message is not None]
        logger.info("%d rows sent, %d of them known already", sum(m.rows for m in done), sum(m.known for m in done))

    def abort(self, messages: Any, *batch: int) -> None:
        """Do nothing: the broker refuses rows that are sent again."""


class Writer(_TaskWriter, DataSourceWriter):
    """Writes a batch."""


class StreamWriter(_TaskWriter, DataSourceStreamWriter):
    """Writes micro-batches."""


def task_message(row: Row, options: SinkOptions) -> tuple[str, str, str, dict[str, Any], dict[str, Any]]:
    """Return (queue, task id, body, headers, properties) of a row's task, in Celery's message protocol 2.

    Raises:
        InvalidArgument: the row has no id, or arguments that are none.
    """
    values = row.asDict(recursive=True)
    name = values[options.task_column] if options.task_column else options.task
    queue = values[options.queue_column] if options.queue_column else options.queue
    if values[options.id_column] is None or not name or not queue:
        raise InvalidArgument(f"a row has no id, task or queue: {values!s:.200}")
    task_id = str(uuid.uuid5(NAMESPACE, f"{options.sink_name or name}:{values[options.id_column]}"))
    args = _arguments(values, options.args_column, list)
    kwargs = _arguments(values, options.kwargs_column, dict)
    eta = values[options.eta_column] if options.eta_column else None
    headers = {
        "lang": "py",
        "task": name,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "eta": _iso(eta),
        "expires": None,
        "argsrepr": f"{args!r:.200}",
        "kwargsrepr": f"{kwargs!r:.200}",
        "origin": f"spark{os.getpid()}@{socket.gethostname()}",
    }
    properties: dict[str, Any] = {"correlation_id": task_id, "reply_to": ""}
    if options.priority_column and values[options.priority_column] is not None:
        properties["priority"] = int(values[options.priority_column])
    return queue, task_id, json.dumps([args, kwargs, _EMBED], default=_plain), headers, properties


def _arguments(values: dict[str, Any], column: str, kind: type) -> Any:
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


def _iso(moment: Any) -> str | None:
    # Spark hands times to Python in the machine's zone, without naming it.
    return moment.astimezone(UTC).isoformat() if isinstance(moment, datetime) else moment


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        raise InvalidArgument("arguments hold bytes, which JSON has no form for; encode the column first, as base64 for example")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
