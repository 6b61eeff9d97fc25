"""Writes the events that the server has now to one file, through pyarrow: for installations without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.event_log.installed import check_installed
from celery_redis_plus.event_log.passed_over import PassedOver

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import EventLogs

#: Entries asked for in one command.
EVENTS_A_READ = 5000


def export(log: EventLogs, queues: Sequence[str], output: str, *, kind: str = "parquet") -> int:
    """Write the events of `queues` to the file `output`, and return how many they are.

    Args:
        log: where the events are.
        queues: their names.
        output: a path; `-` is the standard output.
        kind: `parquet`, or `jsonl`: one JSON object a line, times in ISO 8601, empty columns left out.

    Raises:
        InvalidArgument: pyarrow is not installed; Parquet to the standard output.
    """
    check_installed()
    if kind == "parquet" and output == "-":
        raise InvalidArgument("--output - is for --format jsonl; Parquet needs a file")
    return _parquet(_batches(log, queues), output) if kind == "parquet" else _lines(_batches(log, queues), output)


def _batches(log: EventLogs, queues: Sequence[str]) -> Iterator[Any]:
    from celery_redis_plus.event_log.batches import batch

    passed_over = PassedOver()
    for queue, numbering in log.numberings(queues, strict=False).items():
        for epoch, low, high in numbering.ranges(numbering.trimmed, numbering.total):
            for entries in log.chunks(queue, epoch, low, high, EVENTS_A_READ):
                if entries:
                    found = batch(log.queue_of(queue), entries)
                    passed_over.add(queue, len(entries) - found.num_rows)
                    yield found


def _parquet(batches: Iterator[Any], output: str) -> int:
    from pyarrow import parquet

    from celery_redis_plus.event_log.batches import arrow_schema

    count = 0
    with parquet.ParquetWriter(output, arrow_schema(), compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _lines(batches: Iterator[Any], output: str) -> int:
    import json

    count = 0
    with ExitStack() as stack:
        file = sys.stdout if output == "-" else stack.enter_context(Path(output).open("w", encoding="utf-8"))
        for batch in batches:
            for row in batch.to_pylist():
                known = {name: value for name, value in row.items() if value is not None}
                file.write(json.dumps(known, default=_plain, ensure_ascii=False) + "\n")
                count += 1
    return count


def _plain(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value.isoformat())
