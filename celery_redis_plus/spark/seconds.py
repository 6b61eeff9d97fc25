"""Counts the events of a short period by the second: what the tables per minute cannot show.

Only the messages that had events in the period are traced, from their first event on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.spark.arrow_columns import as_table
from celery_redis_plus.spark.layers import EVENTS, among, message_keys
from celery_redis_plus.spark.message_timelines import MessageTimelines
from celery_redis_plus.spark.minute_aggregates import PARTIAL_MINUTE, SECOND_US, combined, partial_minutes
from celery_redis_plus.spark.repartition import OPEN_SCHEMA
from celery_redis_plus.spark.schema import MOMENT
from celery_redis_plus.spark.snapshot import Snapshot, frame

if TYPE_CHECKING:
    from datetime import date

#: Longer periods are shown by the minute.
LONGEST = pd.Timedelta(minutes=15)
#: Messages that are traced at once, in memory: about 300 MB.
MESSAGES_AT_ONCE = 250_000


def by_second(
    snapshot: Snapshot, start: pd.Timestamp, end: pd.Timestamp, backlogs: Mapping[str, int]
) -> pd.DataFrame:  # fmt: skip
    """Return rows of the table `queues` for each second between `start` and `end` (UTC, without a zone) that has events.

    The column `minute` is the second.

    Args:
        snapshot: the tables.
        start: of the period.
        end: of the period.
        backlogs: of each queue before the minute of `start`: a backlog is known at the end of a minute.
    """
    begin, until = _moment(start.floor("min")), _moment(end)
    partials = pa.concat_tables([PARTIAL_MINUTE.empty_table(), *_traced(snapshot, begin, until)])
    partials = partials.filter(pc.and_(pc.greater_equal(partials["minute"], begin), pc.equal(partials["table"], "queues")))
    seconds = pa.Table.from_batches(combined(iter(partials.to_batches()), SECOND_US)) if partials.num_rows else partials
    rows = frame(seconds).rename(columns={"key": "queue"}).drop(columns="table")
    if not partials.num_rows:
        return pd.DataFrame(columns=[*rows.columns, "wait_p50_s", "wait_p95_s", "backlog"])
    rows = rows.sort_values(["queue", "minute"], ignore_index=True)
    before = rows["queue"].map(backlogs).fillna(0).astype("int64")
    rows["backlog"] = rows.groupby("queue")["backlog_change"].cumsum() + before
    return rows[rows["minute"] < end]


def _traced(snapshot: Snapshot, begin: pa.Scalar, until: pa.Scalar) -> Iterator[pa.Table]:
    """Yield the partial seconds of the messages that had events between two times."""
    published = pc.field("published_at")
    touching = (pc.field("last_at") >= begin) & (published.is_null() | (published < until))
    parts = list(snapshot.batches("messages", ("date", "queue", "id"), touching))
    if not parts:
        return
    # Ids begin with the time of publishing: those of a portion are near each other in the files of events.
    wanted = pa.Table.from_batches(parts).sort_by("id")
    for first in range(0, wanted.num_rows, MESSAGES_AT_ONCE):
        portion = wanted.slice(first, MESSAGES_AT_ONCE)
        days, near = pc.min_max(portion["date"]).as_py(), among("id", portion["id"])
        names = [name for name in OPEN_SCHEMA.names if name != "folded"]
        found = list(snapshot.batches(EVENTS, names, near, (_day(days["min"]), _day(days["max"]))))
        if found:
            table = pa.Table.from_batches(found)
            table = table.filter(pc.is_in(_keys(table), _keys(portion).combine_chunks()))
            table = table.append_column("folded", pa.nulls(table.num_rows, pa.bool_()))
            events = as_table({name: table.column(name) for name in OPEN_SCHEMA.names}, OPEN_SCHEMA)
            yield partial_minutes(MessageTimelines(events).changes(), SECOND_US)


def _keys(rows: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(rows.column("date").cast(pa.string()), message_keys(rows), "\n")


def _moment(time: pd.Timestamp) -> pa.Scalar:
    return pa.scalar(time.to_pydatetime().replace(tzinfo=UTC), MOMENT)


def _day(day: date) -> str:
    return day.isoformat()
