"""Turns stream entries into Arrow record batches, a thousand entries at once (needs pyarrow)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from celery_redis_plus import events
from celery_redis_plus.keys import encode_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_redis_plus.event_log.event_logs import Entry

#: Bytes that an array of Arrow's type `binary` can hold: its offsets have 32 bits.
MOST_BINARY_BYTES = 2**31 - 1

_FIELD, _PAYLOAD_FIELD = events.FIELD, events.PAYLOAD_FIELD
_HEX: NDArray[np.uint8] = np.full(256, 255, dtype=np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)
_WEIGHTS: NDArray[np.int64] = 16 ** np.arange(events.ID_TIME_DIGITS - 1, -1, -1, dtype=np.int64)


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a column's kind (see `events.Column`): what Spark and Parquet get."""
    timestamp = pa.timestamp("us", tz="UTC")
    return {
        "text": pa.string(),
        "int": pa.int32(),
        "long": pa.int64(),
        "us": timestamp,
        "ms": timestamp,
        "bytes": pa.binary(),
    }[kind]


@cache
def arrow_schema(columns: tuple[events.Column, ...] = events.EVENT_COLUMNS) -> pa.Schema:
    """Return the schema of columns; by default that of the batches."""
    return pa.schema([pa.field(column.name, arrow_type(column.kind)) for column in columns])


def batch(queue: str, entries: Sequence[Entry]) -> pa.RecordBatch:
    """Return the events among the entries of one epoch of `queue` as a batch: what somebody else wrote there is left out.

    The payloads are `large_binary` where they are 2 GiB together; `EventLog.chunks` gives no such entries.

    Raises:
        UnknownEventSchema: an entry is of another schema version.
    """
    columns = _parse([entry[1][1] for entry in entries]) if {entry[1][0] for entry in entries} == {_FIELD} else None
    epoch, _ = events.entry_id(entries[0][0])
    if columns is None:
        # Undecodable bytes, of a queue's or worker's name; a number that is none, or too large, which reading leaves out; or
        # entries that are no events.
        found = [(entry, event) for entry in entries if (event := events.read_entry(entry[1])) is not None]
        entries = [entry for entry, _ in found]
        columns = _columns(b"\n".join(events.encode(event) for _, event in found).decode("utf-8", "replace").encode())
    ids, bodies = [entry[0] for entry in entries], [entry[1] for entry in entries]
    count = len(entries)
    skipped = len(str(epoch)) + 1
    place = {
        "queue": pa.repeat(encode_name(queue).decode("utf-8", "replace"), count),
        "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), count),
        "n": pa.array([int(entry_id[skipped:]) for entry_id in ids], pa.int64()),
    }
    derived = {
        "root_id": pc.coalesce(columns["root_id"], columns["task_id"]),
        "published_at": _publish_times(columns["id"]),
        "payload": _payloads(bodies, count),
    }
    arrays = place | columns | derived
    schema = arrow_schema()
    if derived["payload"].type != schema.field("payload").type:
        schema = schema.set(schema.get_field_index("payload"), pa.field("payload", derived["payload"].type))
    return pa.record_batch([arrays[name] for name in schema.names], schema=schema)


_STORED = {"us": pa.int64(), "ms": pa.int64()}


def _parse(values: list[bytes]) -> dict[str, pa.Array] | None:
    """Return the columns of values; None where each has to be looked at for itself."""
    text = b"\n".join(values)
    if text.count(b"\n") != len(values) - 1 or b"\r" in text:
        return None
    try:
        columns = _columns(text)
    except pa.ArrowInvalid:
        return None
    # An empty line is no row.
    if len(columns["event"]) != len(values):
        return None
    known = pc.is_in(columns["event"], pa.array(events.TRANSITIONS))
    times = [
        pc.and_(pc.greater_equal(column, 0), pc.less(column, events.END_US))
        for column in (columns["ts"].cast(pa.int64()), columns["eta"].drop_null().cast(pa.int64()))
    ]
    fine = all(pc.all(check, skip_nulls=False, min_count=0).as_py() for check in (known, *times))
    return columns if fine and columns["id"].null_count == 0 else None


def _columns(text: bytes) -> dict[str, pa.Array]:
    if not text:
        return {column.name: pa.nulls(0, arrow_type(column.kind)) for column in events.VALUE}
    table = _read_csv(text)
    escaped = b"\\" in text
    columns = {}
    for column in events.VALUE:
        array = table.column(column.name).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0)
        if column.kind == "ms":
            array = pc.multiply_checked(array, 1000)
        if column.kind in _STORED:
            array = array.cast(arrow_type(column.kind))
        elif escaped and column.kind == "text":
            array = pa.array([None if text is None else events.unpack_text(text) for text in array.to_pylist()], pa.string())
        columns[column.name] = array
    return columns


def _read_csv(text: bytes) -> pa.Table:
    return csv.read_csv(
        pa.py_buffer(text),
        # One block: a block's end inside a chunk would only make chunks to be combined again.
        csv.ReadOptions(column_names=[column.name for column in events.VALUE], use_threads=False, block_size=len(text) + 1),
        csv.ParseOptions(delimiter=events.FIELD_SEPARATOR, quote_char=False, double_quote=False, escape_char=False),
        csv.ConvertOptions(
            column_types={column.name: _STORED.get(column.kind) or arrow_type(column.kind) for column in events.VALUE},
            null_values=[""],
            strings_can_be_null=True,
        ),
    )


def _publish_times(ids: pa.Array) -> pa.Array:
    """Return `events.published_at` of each id; null for an id that is none of ours."""
    digits = events.ID_TIME_DIGITS
    _, offsets_buffer, data_buffer = ids.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=len(ids) + 1, offset=ids.offset * 4)
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    long_enough = np.diff(offsets) >= digits
    starts = np.where(long_enough, offsets[:-1], 0)
    if len(data) < digits:
        return pa.nulls(len(ids), arrow_type("ms"))
    nibbles = _HEX[data[starts[:, None] + np.arange(digits)]]
    invalid = ~long_enough | (nibbles == 255).any(axis=1)
    times = nibbles.astype(np.int64) @ _WEIGHTS * 1000
    return pa.array(times, mask=invalid).cast(arrow_type("ms"))


def _payloads(bodies: list[Any], count: int) -> pa.Array:
    if all(len(body) == 2 for body in bodies):
        return pa.nulls(count, pa.binary())
    fields = (dict(zip(body[::2], body[1::2], strict=True)) for body in bodies)
    payloads = [field.get(_PAYLOAD_FIELD) for field in fields]
    fits = sum(len(payload) for payload in payloads if payload) <= MOST_BINARY_BYTES
    return pa.array(payloads, pa.binary() if fits else pa.large_binary())
