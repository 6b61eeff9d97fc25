"""Folds new events into the tables. Its cost follows the news: it reads the new events, and those of messages that were open.

The tables are sums of what came. A message that is gone is a row that stays. A message that may have more events keeps them in
the inner table `open`, from which it is traced again. An event changes the minute in which it happened, whose counts and
durations are in the inner table `partials`. New files are written beside the old ones, and count when the manifest is replaced.

Messages are traced by Spark's tasks or in this process (`Tracer`), by the same function; all else is done here, without Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from celery_redis_plus.spark import losses
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS, Layers, by_file, new_file, write
from celery_redis_plus.spark.leftovers import remove_leftovers
from celery_redis_plus.spark.losses import SUPPLIED
from celery_redis_plus.spark.manifest import (
    MIXED,
    OPEN,
    PARTIALS,
    UNFINISHED,
    Dated,
    Manifest,
    RowBatch,
    new_batches,
)
from celery_redis_plus.spark.message_timelines import MessageTimelines
from celery_redis_plus.spark.minute_aggregates import partial_minutes, taken_back
from celery_redis_plus.spark.minute_tables import MinuteTables
from celery_redis_plus.spark.open_messages import EarlierEvents, kept_under
from celery_redis_plus.spark.repartition import EVENTS_IN_MEMORY, OPEN_SCHEMA, in_portions, in_this_process, newest_of
from celery_redis_plus.spark.roots import of_task, opened
from celery_redis_plus.spark.versions import commit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_redis_plus.spark.storage import Storage

#: For so long, µs, a message that was acked before its work began is kept among the open ones: it has another event if the work
#: fails. One that fails later is found in the tables again.
EARLY_US = 60_000_000


@dataclass(frozen=True)
class Folded:
    """Result of an aggregation.

    Attributes:
        version: of the manifest.
        dates: days of publishing whose messages had new events.
        days: days on which these events happened.
        messages: messages that had new events.
        events: how many.
    """

    version: int
    dates: tuple[str, ...] = ()
    days: tuple[str, ...] = ()
    messages: int = 0
    events: int = 0


@dataclass(frozen=True)
class Place:
    """Where traced messages are written.

    Attributes:
        root: the folder of the tables, or their URL.
        folder: of new files within each table's.
        early_since_us: messages acked before their work began at this time or later are kept open.
        newest_us: the time of the newest event.
        by_due: whether messages that wait are put to the day for which they do.
    """

    root: str
    folder: str
    early_since_us: int
    newest_us: int
    by_due: bool


@dataclass(frozen=True)
class Written:
    """A file that a tracer has written.

    Attributes:
        table: its table.
        date: its day, or what it is kept under; '' of `PARTIALS`.
        file: its name.
        news: of `PARTIALS`: how many messages have new events; 0 of the others.
    """

    table: str
    date: str
    file: str
    news: int


#: Traces the events of files (by day of publishing, or `MIXED` of several).
Tracer = Callable[[Mapping[str, Sequence[str]], Place], Iterable[Written]]


def fold(
    root: str | Path | Storage,
    tracer: Tracer | None = None,
    *,
    rebuild: bool = False,
    most: int | None = None,
    kept_s: float | None = None,
) -> Folded:
    """Bring `messages`, `queues`, `tasks` and `workers` up to date with `events`; return what was done.

    Killed at any moment, the tables are as they were before or as they are after; run it again.

    Args:
        root: the folder of tables, or their URL.
        tracer: traces messages; by default this process does.
        rebuild: make all tables anew.
        most: take about as many new events at most, and leave the rest to the next time.
        kept_s: seconds for which the files of a superseded version stay; None is `leftovers.KEPT_S`.

    Raises:
        TablesUnusable: another aggregation or compaction runs there, or a later release has been.
    """
    storage = opened(root)
    with storage.locked():
        old = Manifest.read(storage)
        remove_leftovers(storage, old, kept_s)
        return _Fold(storage, old, tracer or trace_here, rebuild=rebuild or not old.built, most=most).run()


def new_event_count(storage: Storage) -> int:
    """Return how many events the next aggregation reads, but for those of open messages."""
    manifest = Manifest.read(storage)
    new = sum(batch.rows for batch in new_batches(storage, manifest))
    return new if manifest.built else new + sum(storage.row_count(file) for files in manifest.events.values() for file in files)


class _Fold:
    """One aggregation, from the manifest `old` to the next."""

    def __init__(self, storage: Storage, old: Manifest, tracer: Tracer, *, rebuild: bool, most: int | None) -> None:
        self.storage = storage
        self.old = old
        self.tracer = tracer
        self.batches = _first(new_batches(storage, old), most)
        self.new = old.following()
        self.new.folded |= {batch.run: batch.number for batch in self.batches}
        if rebuild:
            self.new.tables, self.new.backlogs = Manifest().tables, ""
        self.layers = Layers(storage, self.new)
        self.fresh: Dated = {date: self.layers.files(EVENTS, date) for date in old.events} if rebuild else {}
        for batch in self.batches:
            for date, files in batch.files.items():
                self.fresh.setdefault(date, []).extend(files)

    def run(self) -> Folded:
        if not self.batches and not self.fresh:
            return Folded(self.old.version)
        if not self.old.version:
            # Files of events without a manifest are those of one that is lost.
            self.old.write(self.storage)
        newest = newest_of(self.storage, (file for files in self.fresh.values() for file in files))
        self.new.newest_us = max(self.old.newest_us, newest)
        events = sum(self.storage.row_count(file) for files in self.fresh.values() for file in files)
        earlier = EarlierEvents(self.layers, newest - EARLY_US)
        place = Place(
            self.storage.where, self.layers.folder, newest - EARLY_US, self.new.newest_us, by_due=earlier.by_due(events)
        )
        supplied = any(loss["why"] == SUPPLIED for batch in self.batches for loss in batch.losses)
        taken = earlier.taken(self.fresh, supplied=supplied) if self.fresh else []
        inputs = {**self.fresh, MIXED: self.fresh.get(MIXED, []) + taken} if self.fresh else {}
        written = list(self.tracer(inputs, place)) if inputs else []
        for file in written:
            if file.table != PARTIALS:
                self.layers.take(file.table, file.date, [file.file])
        partials = [file.file for file in written if file.table == PARTIALS]
        days = MinuteTables(self.layers).add(partials) if partials else []
        dates = self._dates()
        self._take_events()
        self.layers.divide("messages")
        for table in ("messages", OPEN, UNFINISHED):
            for date in list(self.layers.dated(table)):
                self.layers.tidy(table, date)
        self.new.losses = losses.collect(self.layers, self.old, self.batches)
        commit(self.layers)
        return Folded(
            self.new.version,
            dates,
            tuple(days),
            sum(file.news for file in written),
            events,
        )

    def _take_events(self) -> None:
        """Let the events of the new batches be those of the tables."""
        for batch in self.batches:
            for date, files in batch.files.items():
                self.layers.take(EVENTS, date, files)
        self.layers.divide(EVENTS)
        for date in self.fresh:
            self.layers.tidy(EVENTS, date)
        named = {file for files in self.new.events.values() for file in files}
        self.new.superseded += [file for files in self.fresh.values() for file in files if file not in named]

    def _dates(self) -> tuple[str, ...]:
        """Return the days of publishing whose messages have new events."""
        mixed = self.layers.read(EVENTS, self.fresh.get(MIXED, ()), columns=["date"])
        dates = {day.isoformat() for day in mixed.column("date").unique().to_pylist()}
        return tuple(sorted(dates.union(self.fresh).difference([MIXED])))


def _first(batches: Sequence[RowBatch], most: int | None) -> list[RowBatch]:
    """Return the first of the new batches: one at least, and about `most` events."""
    taken: list[RowBatch] = []
    rows = 0
    for batch in batches:
        if most is not None and taken and rows + batch.rows > most:
            break
        taken.append(batch)
        rows += batch.rows
    return taken


def trace_here(files: Mapping[str, Sequence[str]], place: Place) -> Iterator[Written]:
    """Trace messages in this process: of more events than may be in memory, of a rebuild for instance, some at a time."""
    storage = of_task(place.root)
    rows = sum(storage.row_count(file) for of_day in files.values() for file in of_day)
    many = rows > 2 * EVENTS_IN_MEMORY
    for events in in_portions(storage, files, EVENTS_IN_MEMORY) if many else in_this_process(storage, files):
        yield from trace(events, place)


def trace(events: pa.Table, place: Place) -> Iterator[Written]:
    """Trace messages of which `events` has all events that count, and write what they become.

    A file is named at random: that of an attempt that failed is in no manifest.
    """
    if not events.num_rows:
        return
    timelines = MessageTimelines(events)
    new = np.asarray(timelines.table.column("folded").is_null().to_numpy(zero_copy_only=False))
    working = timelines.may_go_on(place.early_since_us)
    messages = timelines.messages()
    length = timelines.ends - timelines.starts + 1
    for date, gone in by_file(messages.filter(pa.array(~working))):
        yield _written(place, "messages", date, gone)
    for key, of_key in kept_under(timelines.due_us(), place.newest_us, by_due=place.by_due):
        chosen = working & of_key
        if chosen.any():
            yield _written(place, UNFINISHED, key, messages.filter(pa.array(chosen)))
            kept = _folded(timelines.table.filter(pa.array(np.repeat(chosen, length))))
            yield _written(place, OPEN, key, kept)
    if new.any():
        news = np.logical_or.reduceat(new, timelines.starts)
        yield _written(place, PARTIALS, "", pa.concat_tables(_minutes(timelines, new)), int(news.sum()))


def _minutes(timelines: MessageTimelines, new: NDArray[np.bool_]) -> Iterator[pa.Table]:
    """Yield what new events change in the minutes.

    An archive supplies events that were before those of which the minutes tell: what these had counted is taken back then.
    """
    follows_new = ~new & np.roll(new, 1) & ~timelines.first
    late: NDArray[np.bool_] = np.repeat(
        np.logical_or.reduceat(follows_new, timelines.starts), timelines.ends - timelines.starts + 1
    )
    counted = new | late
    yield partial_minutes(
        {
            name: column[counted] if isinstance(column, np.ndarray) else column.filter(pa.array(counted))
            for name, column in timelines.changes().items()
        }
    )
    if late.any():
        before = MessageTimelines(timelines.table.filter(pa.array(late & ~new)))
        yield taken_back(partial_minutes(before.changes()))


def _written(place: Place, table: str, date: str, rows: pa.Table, news: int = 0) -> Written:
    file = new_file(place.folder, table, date or uuid.uuid4().hex)
    write(of_task(place.root), file, rows, LAYOUTS[table])
    return Written(table, date, file, news)


def _folded(events: pa.Table) -> pa.Table:
    place = events.schema.get_field_index("folded")
    return events.set_column(place, OPEN_SCHEMA.field("folded"), pa.repeat(pa.scalar(True), events.num_rows))
