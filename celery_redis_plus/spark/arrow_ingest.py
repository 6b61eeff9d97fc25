"""Streams events into the table `events` in this process, without Spark and Java: each event once, whatever is killed."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.event_log import readers
from celery_redis_plus.events import entry_id
from celery_redis_plus.shards.event_logs import events_at
from celery_redis_plus.spark.arrow_columns import by_day
from celery_redis_plus.spark.checkpoint import position_in
from celery_redis_plus.spark.incoming import EVENTS_A_BATCH, Stored, is_stored, store_batch, waiting
from celery_redis_plus.spark.known_broker import KnownBroker
from celery_redis_plus.spark.layers import BYTES_AT_ONCE, EVENTS, LAYOUTS, MOST_MIXED, ROWS_A_GROUP, by_file
from celery_redis_plus.spark.loss_counter import LossCounter
from celery_redis_plus.spark.losses import Loss, noted
from celery_redis_plus.spark.manifest import MIXED, Manifest, dated_folder
from celery_redis_plus.spark.memory import give_back
from celery_redis_plus.spark.partition_reader import read_range
from celery_redis_plus.spark.query_runner import GrowingPause, is_passing
from celery_redis_plus.spark.read_plan import Offset, Planner
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from pyarrow import parquet

    from celery_redis_plus.spark.storage import Storage

#: Events of the first micro-batch of a run that is bounded by bytes.
FIRST_EVENTS = 1000
#: Files that are written at once: a process may have 1024 of them open.
MOST_WRITERS = 200


class _StoppedError(Exception):
    """It was told to end in the middle of a micro-batch, which the next run reads again."""


@dataclass(frozen=True)
class Bounds:
    """What is read at most, so that neither disk nor aggregation is run over. What is not read stays in Redis.

    Attributes:
        batch_bytes: of a micro-batch's files, about: the events of the last one tell how many that are. 0 is no bound.
        waiting_events: events that are stored and not in the tables yet, at which no more are read; 0 is no bound.
        waiting_bytes: and their bytes.
    """

    batch_bytes: int = 0
    waiting_events: int = 0
    waiting_bytes: int = 0


class ArrowIngest:
    """Stores the events of a broker. The caller keeps other ingests out of the folder.

    Args:
        root: the folder of tables, or their URL.
        source: options of `celery_redis`.
        on_batch: called with the number of each micro-batch and what it has.
        most: the bounds of a micro-batch and of what waits for an aggregation.
    """

    def __init__(
        self,
        root: str | Path | Storage,
        source: Mapping[str, Any],
        on_batch: Callable[[int, Stored], None] | None = None,
        most: Bounds | None = None,
    ) -> None:
        self.storage = opened(root)
        given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": EVENTS_A_BATCH, **source}
        self.options = SourceOptions.from_mapping({name: str(value) for name, value in given.items()})
        self.checkpoint = position_in(self.storage)
        self._on_batch = on_batch or (lambda _number, _stored: None)
        self._most = most or Bounds()
        self._event_bytes = 0.0
        self._known_broker = KnownBroker(self.storage, may_change=not self.options.fail_on_data_loss)
        self._stop = threading.Event()
        self._losses = LossCounter(self.storage, self.options, noted(self.storage, Manifest.read(self.storage)))

    def run(
        self, stop: threading.Event, say: Callable[[str], None], *, once: bool = False, interval_s: float = 10.0
    ) -> None:  # fmt: skip
        """Store events until `stop` is set. After a disturbance that passes it goes on, where it stopped.

        Args:
            stop: ends it.
            say: called with a line on each disturbance.
            once: store what is there now, and end; also after a disturbance, which is raised.
            interval_s: seconds between two micro-batches, where the first has all there was.

        Raises:
            EventsLost: events were trimmed before they were read, with `failOnDataLoss`.
            ServerUnreachable: and its kin from `errors`, with `once`.
        """
        pause, self._stop = GrowingPause(), stop
        while not stop.is_set():
            began = time.monotonic()
            try:
                url, prefix, known = self.options.resolved_url(), self.options.prefix, self._known_broker.check
                with events_at(url, prefix, partial=not once, on_database=known) as log:
                    self._follow(Planner(log, self.options), once=once, interval_s=interval_s)
            except _StoppedError:
                return
            except CeleryRedisPlusError as error:
                if once or not is_passing(type(error)):
                    raise
                pause_s = pause.after(time.monotonic() - began)
                say(f"{error}; it starts again in {pause_s:.0f} s")
                stop.wait(pause_s)
            else:
                return

    def _follow(self, planner: Planner, *, once: bool, interval_s: float) -> None:
        goal = planner.newest() if once else None
        number, checkpoint = self.checkpoint.planned(), self.checkpoint
        if number < 0:
            start = planner.start("earliest")
            self._register(planner, start, trim=False)
        elif number > checkpoint.stored():
            # It was planned, and maybe stored: it is the same batch again. If not, it is one without shards that are away now.
            if not is_stored(self.storage, checkpoint.run, number):
                checkpoint.plan(number, planner.reachable(checkpoint.offset(number - 1), checkpoint.offset(number) or {}))
            self._store(planner, number)
            start = checkpoint.offset(number) or {}
        else:
            start = checkpoint.offset(number) or {}
            self._register(planner, start, trim=self.options.trim_on_commit)
        while not self._stop.is_set():
            began = time.monotonic()
            end = start if self._is_ahead() else planner.advance(start, self._batch_events(), goal)
            if end != start:
                number += 1
                checkpoint.plan(number, end)
                self._store(planner, number)
                start = end
                continue
            if once:
                return
            self._stop.wait(max(0.0, interval_s - (time.monotonic() - began)))

    def _batch_events(self) -> int | None:
        """Return how many events the next micro-batch may have."""
        most = self.options.max_offsets_per_trigger
        if not self._most.batch_bytes or most is None:
            return most
        if not self._event_bytes:
            return min(most, FIRST_EVENTS)
        return max(1, min(most, int(self._most.batch_bytes / self._event_bytes)))

    def _is_ahead(self) -> bool:
        """Return whether so many events wait for an aggregation that no more are read."""
        if not self._most.waiting_events and not self._most.waiting_bytes:
            return False
        stored = waiting(self.storage, Manifest.read(self.storage))
        return (0 < self._most.waiting_events <= stored.events) or (0 < self._most.waiting_bytes <= stored.bytes)

    def _store(self, planner: Planner, number: int) -> None:
        start, end = self.checkpoint.offset(number - 1), self.checkpoint.offset(number) or {}

        def losses_of(files: list[str], _number: int) -> list[Loss]:
            return self._losses.losses(planner.log, files, start, end)

        def write(folder: str) -> None:
            write_days(self.storage, self._events(planner, start, end), folder)

        stored = store_batch(self.storage, self.checkpoint.run, number, write, losses_of, end)
        if stored.bytes:
            self._event_bytes = stored.bytes / stored.rows
        self.checkpoint.commit(number)
        self._register(planner, end, trim=self.options.trim_on_commit)
        self._on_batch(number, stored)
        give_back()

    def _events(self, planner: Planner, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        options = self.options

        def note(queue: str, lost: int) -> None:
            planner.lost[queue] = planner.lost.get(queue, 0) + lost

        for part in planner.event_ranges(start if start is not None else planner.start("earliest"), end):
            for events in read_range(
                planner.log, part, fetch_size=options.fetch_size, fail_on_data_loss=options.fail_on_data_loss, on_loss=note
            ):
                if self._stop.is_set():
                    raise _StoppedError
                yield events

    def _register(self, planner: Planner, offset: Offset, *, trim: bool) -> None:
        """Note in Redis what is stored."""
        if self.options.reader_name:
            lost, planner.lost = planner.lost, {}
            positions = {queue: entry_id(position) for queue, position in offset.items() if queue not in planner.foreign}
            owner = self.options.reader_owner
            readers.commit(planner.log, self.options.reader_name, positions, lost=lost, trim=trim, owner=owner)


def write_days(storage: Storage, batches: Iterable[pa.RecordBatch], folder: str) -> None:
    """Write events into a folder, by day of publishing (`by_file`), with a bounded part of them in memory."""
    layout = LAYOUTS[EVENTS]
    writers: dict[str, parquet.ParquetWriter] = {}
    written: Counter[str] = Counter()
    names: list[str] = []
    held: list[pa.Table] = []
    # Counted as they come: a micro-batch has a piece of each queue, and there may be a thousand.
    held_rows = held_bytes = 0

    def close() -> None:
        for writer in writers.values():
            writer.close()
        writers.clear()

    def flush() -> None:
        rows = pa.concat_tables(held)
        held.clear()
        # The queues of an archive may have a few events each of each day of years.
        for date, own in (by_file if written[MIXED] <= MOST_MIXED else by_day)(rows):
            written[date] += own.num_rows
            if date not in writers:
                if len(writers) == MOST_WRITERS:
                    close()
                names.append(f"{folder}/{dated_folder(date)}/{uuid.uuid4().hex}.parquet")
                writers[date] = storage.writer(names[-1], layout.schema)
            writers[date].write_table(own)

    try:
        for batch in batches:
            published = pc.coalesce(batch.column("published_at"), batch.column("ts")).cast(pa.date32())
            rows = pa.Table.from_batches([batch]).append_column("date", published)
            held.append(rows.select(layout.schema.names).cast(layout.schema))
            held_rows, held_bytes = held_rows + rows.num_rows, held_bytes + held[-1].nbytes
            if held_rows >= ROWS_A_GROUP or held_bytes >= BYTES_AT_ONCE:
                flush()
                held_rows = held_bytes = 0
        if held:
            flush()
    finally:
        close()
    # Their events may be trimmed next.
    storage.sync(names)
