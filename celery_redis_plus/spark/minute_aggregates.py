"""Counts events per minute by queue, task and worker, in arrays, in two steps.

A partition has some of a minute's messages, so its counts are partial: rows of `PARTIAL_MINUTE`, with the single waits and runs
packed into one value. `combined` adds up the partial rows of each minute and takes exact percentiles. Python passes Spark one row
a minute and partition, not one row an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.events import COMPLETING, FAILED_DELIVERY
from celery_redis_plus.spark.arrow_columns import as_table, microseconds, plain
from celery_redis_plus.spark.schema import arrow, ddl

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The tables per minute, and the column that each counts by.
PER_MINUTE = {"queues": "queue", "tasks": "task", "workers": "worker"}
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

#: How long the steps are that are counted, µs; the tables have minutes, the charts of short periods seconds.
MINUTE_US, SECOND_US = 60_000_000, 1_000_000
_COUNTS = (
    *("published", "delivered", "acked", "failed", "retried", "requeued", "expired", "dead", "removed"),
    "failed_deliveries",
    "backlog_change",
)
_DURATIONS = ("wait", "run")
_KEY_AND_COUNTS = {"table": "string", "key": "string", "minute": "timestamp"} | dict.fromkeys(_COUNTS, "bigint")
_PARTIAL = _KEY_AND_COUNTS | dict.fromkeys(_DURATIONS, "binary")
_MINUTE = _KEY_AND_COUNTS | {f"{name}_{label}_s": "double" for name in _DURATIONS for label in PERCENTILES}

#: `key` is a queue, a task or a worker; `wait` and `run` are doubles, seconds, one after the other; with a minus, taken back.
PARTIAL_MINUTE, PARTIAL_MINUTE_DDL = arrow(_PARTIAL), ddl(_PARTIAL)
MINUTE, MINUTE_DDL = arrow(_MINUTE), ddl(_MINUTE)


def minute_schema(table: str) -> pa.Schema:
    """Return the columns of `queues`, `tasks` or `workers`."""
    return arrow(_minute_columns(table))


def minute_ddl(table: str) -> str:
    """Return the same as a DDL string."""
    return ddl(_minute_columns(table))


def _minute_columns(table: str) -> dict[str, str]:
    columns = {PER_MINUTE[table]: "string"} | {name: kind for name, kind in _MINUTE.items() if name not in {"table", "key"}}
    return columns | {"date": "date"} | ({"backlog": "bigint"} if table == "queues" else {})


def partial_minutes(changes: Mapping[str, Any], step_us: int = MINUTE_US) -> pa.Table:
    """Return rows of `PARTIAL_MINUTE` for all three tables.

    Args:
        changes: columns of the same length, an element an event: `queue`, `task`, `worker`, `event`, `reason`; `ts`, µs; `wait_s`
            and `run_s`, NaN where the event ended none; `ready_change`.
        step_us: how long a step is.
    """
    flags = _flags(changes["event"], changes["reason"])
    flags["backlog_change"] = changes["ready_change"]
    return pa.concat_tables([_partial_minutes(table, changes[key], changes, flags, step_us) for table, key in PER_MINUTE.items()])


def combined(batches: Iterator[pa.RecordBatch], step_us: int = MINUTE_US) -> Iterator[pa.RecordBatch]:
    """Yield rows of `MINUTE` of a partition that has all partial rows of its minutes."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return
    read = pa.Table.from_batches(found)
    keys = pc.binary_join_element_wise(read.column("table"), read.column("key"), "\n")
    place, group = _grouped(_codes(keys), microseconds(read.column("minute")) // step_us)
    taken = pa.array(place)
    columns: dict[str, Any] = {name: read.column(name).take(taken) for name in ("table", "key", "minute")}
    for name in _COUNTS:
        columns[name] = _sums(group, np.asarray(read.column(name).to_numpy()), len(place))
    for name in _DURATIONS:
        lengths, values = _unpacked(read.column(name))
        columns |= percentiles(name, *_not_taken_back(np.repeat(group, lengths), values), len(place))
    yield from as_table(columns, MINUTE).to_batches()


def backlog_changes(queues: Any, changes: Any, at_us: int) -> pa.Table:
    """Return rows of `PARTIAL_MINUTE` by which backlogs change though nothing happens.

    Args:
        queues: a column of their names.
        changes: how many messages are ready more, of each.
        at_us: when, µs.
    """
    count = len(queues)
    columns: dict[str, Any] = {name: pa.repeat(0, count) for name in _COUNTS} | {
        name: pa.repeat(b"", count) for name in _DURATIONS
    }
    columns |= {"table": pa.repeat("queues", count), "key": queues, "backlog_change": changes}
    return as_table(columns | {"minute": pa.repeat(at_us // MINUTE_US * MINUTE_US, count)}, PARTIAL_MINUTE)


def taken_back(partials: pa.Table) -> pa.Table:
    """Return partial rows that undo others: their counts and durations have the other sign, a duration of 0 too."""
    columns = {name: partials.column(name) for name in _KEY_AND_COUNTS}
    columns |= {name: pc.negate(columns[name]) for name in _COUNTS}
    for name in _DURATIONS:
        lengths, seconds = _unpacked(partials.column(name))
        columns[name] = _packed(np.repeat(np.arange(len(lengths)), lengths), -seconds, len(lengths))
    return as_table(columns, PARTIAL_MINUTE)


def _not_taken_back(
    group: NDArray[np.int64], seconds: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:  # fmt: skip
    """Return groups and their seconds without those that were taken back."""
    back = np.signbit(seconds)
    if not back.any():
        return group, seconds
    found, place = np.unique(np.stack([group, np.abs(seconds)]), axis=1, return_inverse=True)
    count = np.bincount(place.reshape(-1), weights=np.where(back, -1, 1)).astype(np.int64)
    left = np.repeat(found, np.maximum(count, 0), axis=1)
    return left[0].astype(np.int64), left[1]


def _flags(event: Any, reason: Any) -> dict[str, NDArray[Any]]:
    """Return for each count which events it counts."""
    reason = pc.fill_null(reason, "")

    def among(column: Any, *values: str) -> NDArray[np.bool_]:
        return np.asarray(pc.is_in(column, pa.array(values)).to_numpy(zero_copy_only=False))

    acked, late = among(event, "acked"), among(event, "failed")
    completed, retry = among(reason, *COMPLETING), among(reason, "retry")
    rejected = among(event, "rejected")
    given_up = among(event, "recovered", "requeued", "retried", "dead_lettered") & among(reason, *FAILED_DELIVERY)
    return {
        "published": among(event, "published"),
        "delivered": among(event, "claimed"),
        "acked": acked & completed,
        "failed": (acked & ~completed & ~retry & ~among(reason, "expired")) | rejected | (late & ~retry),
        "retried": ((acked | late) & retry) | among(event, "retried"),
        "requeued": among(event, "recovered", "requeued"),
        "expired": among(event, "expired") | among(reason, "expired"),
        "dead": among(event, "dead_lettered"),
        "removed": among(event, "cancelled", "purged", "dropped", "vanished"),
        "failed_deliveries": given_up | rejected | (acked & among(reason, "failure")) | (late & ~retry),
    }


def _partial_minutes(
    table: str, key: Any, changes: Mapping[str, Any], flags: Mapping[str, NDArray[Any]], step_us: int
) -> pa.Table:  # fmt: skip
    has_key = np.asarray(key.is_valid().to_numpy(zero_copy_only=False))
    counted = np.flatnonzero(has_key)
    key = key.take(pa.array(counted))
    minutes = changes["ts"][counted] // step_us
    place, group = _grouped(_codes(key), minutes)
    columns: dict[str, Any] = {
        "table": pa.repeat(pa.scalar(table), len(place)),
        "key": key.take(pa.array(place)),
        "minute": pa.array(minutes[place] * step_us),
    }
    for name, flag in flags.items():
        columns[name] = _sums(group, flag[counted], len(place))
    for name in _DURATIONS:
        columns[name] = _packed(group, changes[f"{name}_s"][counted], len(place))
    return as_table(columns, PARTIAL_MINUTE)


def _grouped(codes: NDArray[np.int64], minutes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of an element of each group of equal (code, minute), and the group of each element."""
    if not len(codes):
        return codes, codes
    minutes = minutes - minutes.min()
    _, place, group = np.unique(codes * (minutes.max() + 1) + minutes, return_index=True, return_inverse=True)
    return place, group.reshape(-1)


def _codes(column: Any) -> NDArray[np.int64]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(array.dictionary_encode().indices.to_numpy(), dtype=np.int64)


def _sums(group: NDArray[np.int64], values: NDArray[Any], count: int) -> pa.Array:
    # Doubles hold whole numbers exactly up to 2^53.
    return pa.array(np.bincount(group, weights=values, minlength=count).astype(np.int64))


def _packed(group: NDArray[np.int64], seconds: NDArray[np.float64], count: int) -> pa.Array:
    """Return the seconds of each group that are a number, as one value."""
    known = ~np.isnan(seconds)
    group, seconds = group[known], seconds[known]
    data = seconds[np.argsort(group, kind="stable")].astype("<f8")
    offsets: NDArray[np.int64] = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(group, minlength=count) * data.itemsize, out=offsets[1:])
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _unpacked(column: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return how many seconds each value has, and all of them."""
    values = plain(column, pa.large_binary())
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    packed = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]] if data else np.empty(0, dtype=np.uint8)
    return np.diff(ends) // 8, packed.view("<f8")


def percentiles(
    name: str, group: NDArray[np.int64], seconds: NDArray[np.float64], count: int, shares: Mapping[str, float] = PERCENTILES
) -> dict[str, pa.Array]:
    """Return the smallest of a group's seconds that at least a share of all are not above; null where there are none.

    Args:
        name: the columns are named after it, such as `wait_p50_s`.
        group: of each second, from 0 on.
        seconds: the values.
        count: how many groups there are.
        shares: label of a column -> share.
    """
    ordered = seconds[np.lexsort((seconds, group))]
    counts = np.bincount(group, minlength=count)
    starts = np.cumsum(counts) - counts
    found = {}
    for label, share in shares.items():
        rank = np.maximum(np.ceil(share * counts).astype(np.int64) - 1, 0)
        found[f"{name}_{label}_s"] = pa.array(ordered).take(pa.array(starts + rank, mask=counts == 0))
    return found
