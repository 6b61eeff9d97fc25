"""Moves finished messages out of a queue's events into Parquet files, in batches; needs pyarrow.

A queue has a folder of its own (`archive_folders.py`). A batch is a file `finished-EPOCH-N.parquet`, named by the last event that
it knows, and beside it `open-EPOCH-N.parquet` with the events so far of the messages that are not gone. The first one's
appearance is the commit: a run goes on after the newest, with the `open` file of the same name. So a run that dies in between
loses no row and writes none twice, and the server trims only what files have.

With `events`, `events-EPOCH-N.parquet` has all events of the batch besides, in the columns of the table `events`; it counts if
the first one is there. The Spark pipeline makes its tables of them (`spark/archive_ingest.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redis_plus.errors import EventsLost
from celery_redis_plus.event_log.archive_folders import appearing, describe, folder_of
from celery_redis_plus.event_log.finished_messages import FINISHED, is_finished, is_gone, row
from celery_redis_plus.event_log.installed import check_installed
from celery_redis_plus.event_log.offsets import BEGINNING
from celery_redis_plus.event_log.passed_over import PassedOver
from celery_redis_plus.event_log.readers import commit
from celery_redis_plus.events import ID_TIME_DIGITS, Event, decode, encode, read_entry
from celery_redis_plus.keys import encode_name

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import Entry, EventLogs
    from celery_redis_plus.event_log.offsets import Id, Offsets

#: Events of a batch, and of one command.
EVENTS_A_FILE, EVENTS_A_READ = 50_000, 5000
#: The time in a message's id, of which a row needs it.
_ID = re.compile(rf"[0-9a-f]{{{ID_TIME_DIGITS}}}")
_NAME = re.compile(r"finished-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved of one queue.

    Attributes:
        finished: rows written.
        open: messages that are not gone yet: dead letters are among them, and have a row.
        events: events read.
        lost: events that were trimmed before they could be read.
        passed_over: entries of the stream that are no events: somebody else wrote them.
    """

    finished: int = 0
    open: int = 0
    events: int = 0
    lost: int = 0
    passed_over: int = 0


def move_finished(
    log: EventLogs, queues: Sequence[str], folder: Path, *, reader: str = "archive", events: bool = False
) -> dict[str, Moved]:  # fmt: skip
    """Move the finished messages of `queues` into files under `folder`; return what was moved, by queue.

    Args:
        log: where the events are.
        queues: their names.
        folder: is made if it is not there. One run at a time.
        reader: the name under which the server keeps events for these files; another one for another folder.
        events: keep the events too, in files of their own.

    Raises:
        InvalidArgument: pyarrow is not installed.
        EventsLost: a stream was deleted and started again since the last run. The other queues are moved all the same.
    """
    check_installed()
    moved, failures = {}, []
    for queue in queues:
        try:
            moved[queue] = _Mover(log, queue, folder_of(folder, queue), reader, events=events).run()
        except EventsLost as error:
            # The others are moved all the same.
            failures.append(error)
    if failures:
        raise failures[0]
    return moved


class _Mover:
    """Moves one queue's messages."""

    def __init__(self, log: EventLogs, queue: str, folder: Path, reader: str, *, events: bool) -> None:
        self._log, self._queue, self._folder, self._reader, self._events = log, queue, folder, reader, events
        describe(folder, log, queue)
        self._position: Id = max(map(_position, folder.glob("finished-*.parquet")), default=BEGINNING)
        self._open = self._read_open()
        self._passed_over = PassedOver()

    def run(self) -> Moved:
        # From now on the server keeps what these files do not have; and what a run that died had written is trimmed.
        commit(self._log, self._reader, {self._queue: self._position})
        numbering = self._log.numberings([self._queue])[self._queue]
        at = numbering.index(self._position)
        lost = max(0, numbering.trimmed - at)
        finished, events, told = 0, 0, 0
        for low in range(at + lost, numbering.total, EVENTS_A_FILE):
            high = min(low + EVENTS_A_FILE, numbering.total)
            with self._kept_events(numbering.id(high)) as keep:
                rows, read = self._fold(numbering, low, high, keep)
            lost += high - low - read
            self._write(numbering.id(high), rows)
            commit(self._log, self._reader, {self._queue: self._position}, lost={self._queue: lost - told})
            finished, events, told = finished + len(rows), events + read, lost
        passed_over = self._passed_over.counts[self._queue]
        return Moved(finished, len(self._open), events - passed_over, lost, passed_over)

    def _fold(
        self, numbering: Offsets, low: int, high: int, keep: Callable[[Sequence[Entry]], None]
    ) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
        rows, read = [], 0
        for epoch, first, last in numbering.ranges(low, high):
            for entries in self._log.chunks(self._queue, epoch, first, last, EVENTS_A_READ):
                read += len(entries)
                keep(entries)
                for _, fields in entries:
                    event = read_entry(fields)
                    if event is None or not _ID.match(event.id):
                        self._passed_over.add(self._queue, 1)
                        continue
                    path = self._open.setdefault(event.id, [])
                    path.append(event)
                    if is_finished(path):
                        rows.append({name: _utf8(value) for name, value in row(path).items()})
                    if is_gone(path):
                        del self._open[event.id]
        return rows, read

    # -- files ------------------------------------------------------------------------------------------------------------

    def _read_open(self) -> dict[str, list[Event]]:
        from pyarrow import parquet

        path, found = self._path("open", self._position), dict[str, list[Event]]()
        if path.exists():
            for value in parquet.read_table(path)["value"].to_pylist():
                event = decode(value)
                found.setdefault(event.id, []).append(event)
        return found

    def _write(self, position: Id, rows: list[dict[str, Any]]) -> None:
        """Write both files of a batch; it is committed when the second one is there."""
        import pyarrow as pa

        from celery_redis_plus.event_log.batches import arrow_schema

        values = [encode(event) for path in self._open.values() for event in path]
        _replace(self._path("open", position), pa.table({"value": pa.array(values, pa.binary())}))
        _replace(self._path("finished", position), pa.Table.from_pylist(rows, schema=arrow_schema(FINISHED)))
        for stale in self._folder.glob("open-*.parquet"):
            if stale != self._path("open", position):
                stale.unlink()
        self._position = position

    @contextmanager
    def _kept_events(self, position: Id) -> Iterator[Callable[[Sequence[Entry]], None]]:
        """Yield what keeps entries as events, if they are to be kept."""
        if not self._events:
            yield lambda _entries: None
            return
        from pyarrow import parquet

        from celery_redis_plus.event_log.batches import arrow_schema, batch

        with (
            appearing(self._path("events", position)) as file,
            parquet.ParquetWriter(file, arrow_schema(), compression="zstd") as writer,
        ):
            yield lambda entries: writer.write_batch(batch(self._log.queue_of(self._queue), entries)) if entries else None

    def _path(self, kind: str, position: Id) -> Path:
        return self._folder / f"{kind}-{position[0]:015d}-{position[1]:015d}.parquet"


def _utf8(value: Any) -> Any:
    """Return a value as Arrow takes it: names and ids may be no UTF-8."""
    return encode_name(value).decode("utf-8", "replace") if isinstance(value, str) else value


def _position(path: Path) -> Id:
    match = _NAME.fullmatch(path.name)
    return BEGINNING if match is None else (int(match[1]), int(match[2]))


def _replace(path: Path, table: Any) -> None:
    """Replace a file by a table."""
    from pyarrow import parquet

    with appearing(path) as file:
        parquet.write_table(table, file, compression="zstd")
