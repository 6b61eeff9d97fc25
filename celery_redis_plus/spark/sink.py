"""The sink `celery_task`: a task per row, each row once, whatever Spark repeats.

A task's id follows from `sinkName` and the row's id, never from a batch's number or a row's place: a retried Spark task knows
neither. The broker refuses an id that it knows (`transport/once_sender.py`), in the step that stores the message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
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
from celery_redis_plus.spark.sink_rows import task_message
from celery_redis_plus.transport.once_sender import OnceSender

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)


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
