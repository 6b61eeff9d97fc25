"""The source `celery_redis`, batch and streaming.

Reader objects travel to the tasks pickled, so they open connections where they work, never before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.event_log import readers
from celery_redis_plus.events import entry_id
from celery_redis_plus.shards.event_logs import events_at
from celery_redis_plus.spark.filters import Pushed
from celery_redis_plus.spark.older_pyspark import HAS_LIMITS, SupportsTriggerAvailableNow, check_options, limit_of, most_rows
from celery_redis_plus.spark.partition_reader import read_range
from celery_redis_plus.spark.read_plan import Offset, Planner
from celery_redis_plus.spark.schema import EVENTS_DDL
from celery_redis_plus.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from celery_redis_plus.event_log.event_logs import EventLogs


class CeleryRedisSource(DataSource):
    """Lifecycle events: `spark.read.format("celery_redis").option("url", ...)`, or `spark.readStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "celery_redis"

    def schema(self) -> str:
        """Return the columns of `events.EVENT_COLUMNS`."""
        return EVENTS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark gives the signature
        """Return the batch reader. Spark refuses one that takes filters while its own switch is off, hence two classes."""
        options = self._checked()
        return FilteringReader(options) if options.push_filters else EventReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - as above
        """Return the stream reader."""
        return StreamReader(self._checked())

    def _checked(self) -> SourceOptions:
        options = SourceOptions.from_mapping(self.options)
        check_options(options)
        return options


def _opened(options: SourceOptions, *, partial: bool = False) -> EventLogs:
    return events_at(options.resolved_url(), options.prefix, partial=partial)


def _read(options: SourceOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    # Spark makes a partition of None where there are none.
    if partition is None or not isinstance(partition.value, tuple):
        return
    with _opened(options) as log:

        def note(queue: str, lost: int) -> None:
            if options.reader_name:
                # Here, as the driver does not hear of it; a task that Spark repeats counts again.
                readers.commit(log, options.reader_name, {queue: (0, 0)}, lost={queue: lost}, trim=False)

        for part in partition.value:
            yield from read_range(
                log, part, fetch_size=options.fetch_size, fail_on_data_loss=options.fail_on_data_loss, on_loss=note
            )


class EventReader(DataSourceReader):
    """A batch over the events between `startingOffsets` and `endingOffsets`."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """Return what each task reads."""
        with _opened(self.options) as log:
            planner = Planner(log, self.options)
            start, end = planner.start("earliest"), planner.end()
            if self.pushed.from_ms is not None or self.pushed.to_ms is not None:
                start, end = self._bounded(planner, start, end)
            if self.pushed.queues is not None:
                end = {queue: position for queue, position in end.items() if log.queue_of(queue) in self.pushed.queues}
            return [InputPartition(partition) for partition in planner.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition."""
        return map(self.pushed.keep, _read(self.options, partition))

    def _bounded(self, planner: Planner, start: Offset, end: Offset) -> tuple[Offset, Offset]:
        """Return the offsets, narrowed to the pushed times."""
        numberings = planner.numberings()
        for queue in end.keys() & numberings:
            numbering = numberings[queue]
            low, high = numbering.position_of(entry_id(start[queue])), numbering.position_of(entry_id(end[queue]))
            if self.pushed.from_ms is not None:
                low = max(low, planner.log.first_after(numbering, self.pushed.from_ms))
            if self.pushed.to_ms is not None:
                high = min(high, planner.log.first_after(numbering, self.pushed.to_ms))
            start = start | {queue: "{}-{}".format(*numbering.id(low))}
            end = end | {queue: "{}-{}".format(*numbering.id(max(low, high)))}
        return start, end


class FilteringReader(EventReader):
    """A batch that reads no more than the query's filters want."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take `filters`, and leave all of them to Spark as well."""
        self.pushed = Pushed.of(filters)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: offsets are the last event read, by queue; Spark keeps them in its checkpoint."""

    def __init__(self, options: SourceOptions) -> None:
        if options.push_filters:
            raise InvalidArgument("option pushFilters: Spark pushes filters into batches only; leave it out of readStream")
        self.options = options
        self._goal: Offset | None = None
        self._committed: Offset | None = None
        #: Where the last micro-batch ended, for a Spark that does not say it.
        self._reached: Offset = {}
        self._held: Planner | None = None
        #: When the last micro-batch was planned.
        self._planned_at: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind."""
        return {"options": self.options, "_goal": None, "_committed": None, "_reached": {}, "_held": None, "_planned_at": None}

    @property
    def _planner(self) -> Planner:
        if self._held is None:
            # Events of a shard that cannot be reached come later.
            self._held = Planner(_opened(self.options, partial=True), self.options)
        return self._held

    def initialOffset(self) -> Offset:
        """Return where a query without a checkpoint begins, and register the reader there."""
        start = self._planner.start("latest")
        self._commit(start, trim=False)
        self._reached = start
        return start

    def getDefaultReadLimit(self) -> Any:
        """Return `maxOffsetsPerTrigger` as Spark's own kind of limit."""
        return limit_of(self.options.max_offsets_per_trigger)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return how far the next micro-batch goes. Everything up to `start` is in the commit log by now.

        Spark calls `commit` only when there is a next micro-batch, so not for the last one of an availableNow run. Before 4.2 it
        gives neither `start` nor `limit`.
        """
        if start is None:
            self._reached = self._planner.advance(self._reached, None)
            return self._reached
        if start != self._committed:
            self.commit(start)
        if self._waits_for_more(start):
            return start
        rows = most_rows(limit)
        if self.options.max_bytes_per_trigger is not None:
            fitting = self._planner.rows_of(start, self.options.max_bytes_per_trigger)
            rows = fitting if rows is None else min(rows, fitting)
        end = self._planner.advance(start, rows, self._goal)
        if end != start:
            self._planned_at = time.monotonic()
        return end

    def _waits_for_more(self, start: Offset) -> bool:
        """Return whether too few events are there for a micro-batch; not for the first one, and not of an availableNow run."""
        least, planned_at = self.options.min_offsets_per_trigger, self._planned_at
        if least is None or planned_at is None or self._goal is not None:
            return False
        if time.monotonic() - planned_at >= self.options.max_trigger_delay:
            return False
        return self._planner.lag(start) < least

    def reportLatestOffset(self) -> Offset:
        """Return the newest events: progress shows them beside `endOffset`, and the difference is the lag."""
        return self._planner.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: what is written later is left to the next run."""
        self._goal = self._planner.newest()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return what each task reads of a micro-batch."""
        if not HAS_LIMITS and (ended := {queue: start[queue] for queue in start.keys() - end.keys()}):
            # After a restart, `latestOffset` does not know of a queue whose event log has ended meanwhile.
            known = self._planner.advance(ended, None)
            end = {queue: position for queue, position in known.items() if queue in ended} | end
        return [InputPartition(partition) for partition in self._planner.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition."""
        return _read(self.options, partition)

    def commit(self, end: Offset) -> None:
        """Note what is safe; with `trimOnCommit`, let go of the events that every registered reader has."""
        self._committed = end
        self._commit(end, trim=self.options.trim_on_commit)

    def stop(self) -> None:
        """Close the connection."""
        if self._held is not None:
            self._held.log.close()

    def _commit(self, offset: Offset, *, trim: bool) -> None:
        if self.options.reader_name:
            lost, self._planner.lost = self._planner.lost, {}
            foreign = self._planner.foreign
            positions = {queue: entry_id(position) for queue, position in offset.items() if queue not in foreign}
            readers.commit(
                self._planner.log, self.options.reader_name, positions, lost=lost, trim=trim, owner=self.options.reader_owner
            )
