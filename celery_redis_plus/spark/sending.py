"""Sends rows as tasks as the sink does, and counts those that the broker knew: Spark shows no figures of a Python sink."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampNTZType

from celery_redis_plus.spark.schema import arrow, ddl
from celery_redis_plus.spark.sink import checked, rows_of, sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from celery_redis_plus.spark.sink_options import SinkOptions

#: The name of both figures in a query's progress.
OBSERVED = "celery_task"
_SENT = {"rows": "bigint", "known": "bigint"}


def sending(frame: DataFrame, **options: object) -> DataFrame:
    """Return a frame that sends the rows of another one when it is computed: a row a Spark task, with `rows` and `known`.

    `known` are rows of which the broker knew the ids, so that they were not sent. The progress of a query has the sums of a
    micro-batch: `query.lastProgress["observedMetrics"]["celery_task"]`. Spark computes a part of a frame for `show` and `limit`,
    and sends that part only.

    Args:
        frame: the rows, of a batch or a stream.
        options: those of the sink `celery_task`.

    Raises:
        OptionError: one is not allowed; the message says what is.
    """
    given = checked({name: str(value) for name, value in options.items()}, frame.schema)
    utc = frozenset(field.name for field in frame.schema.fields if isinstance(field.dataType, TimestampNTZType))
    done = frame.mapInArrow(partial(_send_partition, options=given, utc=utc), ddl(_SENT))
    return done.observe(OBSERVED, *(sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in _SENT))


def _send_partition(batches: Iterator[pa.RecordBatch], *, options: SinkOptions, utc: frozenset[str]) -> Iterator[pa.RecordBatch]:
    done = sent(rows_of(batches), options, utc)
    yield from pa.table({"rows": [done.rows], "known": [done.known]}, schema=arrow(_SENT)).to_batches()
