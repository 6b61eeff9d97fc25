"""Where the messages are that may have more events, and how those are found that have new ones.

Such a message keeps its events in the inner table `open`, and its row in `unfinished`. Both are divided by when more is to be
expected, so that an aggregation touches few of them, however many wait for a distant eta:

    ready       delivered or to be delivered, or due today: it may have new events at any time
    new         waits for a later day; a few, which are not put to that day yet
    YYYY-MM-DD  waits for that day; once it has come, all of them are looked at as well
    later       waits for longer than a year

The first two and the days that have come are traced again as a whole where they are few. Of many, a backlog of a million for
instance, only those with new events are: the others stay in their files, which are small, and of which the few with such messages
are written anew. An event that comes before its day, of a cancelled message for instance, is found by its message's id.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.spark.arrow_columns import by_day
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS, Layers, among, read, write
from celery_redis_plus.spark.manifest import MIXED, OPEN, UNFINISHED
from celery_redis_plus.spark.message_timelines import DESCRIPTION_TYPES
from celery_redis_plus.spark.repartition import EVENTS_SCHEMA
from celery_redis_plus.spark.schema import MOMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyarrow import parquet

#: What the files of a message that waits for no later day, for a day that is not told yet, and for a distant day are kept under.
READY, NEW, LATER = "ready", "new", "later"
#: Events that are traced again without a look: as fast as to find some of them.
FEW_EVENTS = 10_000
#: So many events under `NEW` are put to their days.
MOST_NEW_EVENTS = 5000
#: Messages that are due later than in so many days are together.
DISTANT_DAYS = 366
_DAY_US = 86_400_000_000


class EarlierEvents:
    """The earlier events of messages, for an aggregation.

    Args:
        layers: of the next manifest; it is changed.
        early_since_us: messages acked before their work began at this time or later are kept open.
    """

    def __init__(self, layers: Layers, early_since_us: int) -> None:
        self.layers = layers
        self.early_since = pa.scalar(early_since_us, pa.int64()).cast(MOMENT)
        self.today = _day(layers.manifest.newest_us // _DAY_US)
        self._new_events = self._rows([NEW])

    def by_due(self, news: int) -> bool:
        """Return whether what waits is put to its days, with so many new events."""
        return self._new_events > MOST_NEW_EVENTS or news > 10 * FEW_EVENTS

    def taken(self, fresh: Mapping[str, Sequence[str]], *, supplied: bool = False) -> list[str]:
        """Take the messages that have new events out of the tables; return files with their earlier events.

        Args:
            fresh: the files of new events by day of publishing.
            supplied: an archive supplies events: a message whose first one is new may be in the tables.
        """
        files = [file for of_day in fresh.values() for file in of_day]
        new = read(self.layers.storage, files, EVENTS_SCHEMA, columns=["queue", "id", "date", "event"])
        near = [key for key in self.layers.dated(OPEN) if self._is_near(key)]
        whole = near if self._rows(near) <= FEW_EVENTS else [NEW] if self._new_events > MOST_NEW_EVENTS else []
        found, known = self._whole(whole)
        picked = [self._picked([key for key in near if key not in whole], self._with_early(new, near, whole))]
        begun = [] if supplied else [new.filter(pc.equal(new.column("event"), "published"))]
        strangers = _strangers(new, [*begun, known, *picked])
        if strangers.num_rows:
            far = [key for key in self.layers.dated(OPEN) if not self._is_near(key)]
            picked.append(self._picked(far, strangers))
            strangers = _strangers(strangers, picked[-1:])
        picked += self._reopened(strangers)
        return found + self._kept_aside(pa.concat_tables(picked))

    def _is_near(self, key: str) -> bool:
        return key in {READY, NEW} or key <= self.today

    def _rows(self, keys: Sequence[str]) -> int:
        return sum(self.layers.storage.row_count(file) for key in keys for file in self.layers.files(OPEN, key))

    def _whole(self, keys: Sequence[str]) -> tuple[list[str], pa.Table]:
        """Take all messages under some keys out of the tables; return the files of their events, and which they are."""
        files = [file for key in keys for file in self.layers.files(OPEN, key)]
        known = self.layers.read(OPEN, files, columns=["queue", "id", "date"])
        for table in (OPEN, UNFINISHED):
            for key in keys:
                self.layers.drop(table, key, self.layers.files(table, key))
        return files, known

    def _with_early(self, new: pa.Table, near: Sequence[str], whole: Sequence[str]) -> pa.Table:
        """Return the messages that have new events, and those that are over by now although nothing has happened to them."""
        early = (pc.field("reason") == "early") & (pc.field("ts") < self.early_since)
        files = [file for key in near if key not in whole for file in self.layers.files(OPEN, key)]
        columns = ["queue", "id", "date"]
        return pa.concat_tables([new.select(columns), self.layers.read(OPEN, files, early, columns)])

    def _picked(self, keys: Sequence[str], chosen: pa.Table) -> pa.Table:
        """Take some of the messages under some keys out of their files; return their earlier events."""
        layers = self.layers
        picked = [LAYOUTS[OPEN].schema.empty_table()]
        if not keys or not chosen.num_rows:
            return picked[0]
        wanted = dated_keys(chosen).unique()
        ids = chosen.column("id").unique()
        ordered = sorted(ids.to_pylist())
        for table, columns in ((OPEN, None), (UNFINISHED, ["queue", "id", "date"])):
            for key, file in [(own, file) for own in keys for file in layers.files(table, own)]:
                if not _may_have(layers.storage.metadata(file), ordered):
                    continue
                rows = layers.read(table, [file], among("id", ids), columns)
                rows = rows.filter(pc.is_in(dated_keys(rows), wanted))
                if rows.num_rows:
                    layers.without(table, key, file, wanted, dated_keys)
                    picked += [rows] if table == OPEN else []
        return pa.concat_tables(picked)

    def _reopened(self, strangers: pa.Table) -> Iterator[pa.Table]:
        """Take messages that were gone, and have new events, out of the tables; yield their events.

        Only tasks that fail after an early ack do that, and a server that went back to an older state. Events that have expired
        are those that the message's row tells of.
        """
        layers = self.layers
        for date, own in by_day(strangers):
            near, wanted = among("id", own.column("id").unique()), dated_keys(own)
            found = [layers.read("messages", [])]
            for kept, file in [(of, its) for of in (date, MIXED) for its in layers.files("messages", of)]:
                rows = layers.read("messages", [file], near)
                rows = rows.filter(pc.is_in(dated_keys(rows), wanted))
                if rows.num_rows:
                    found.append(rows)
                    layers.without("messages", kept, file, dated_keys(rows).combine_chunks(), dated_keys)
            gone = pa.concat_tables(found)
            if gone.num_rows:
                earlier = [file for of in (date, MIXED) for file in layers.files(EVENTS, of)]
                events = read(layers.storage, earlier, EVENTS_SCHEMA, near)
                events = events.filter(pc.is_in(dated_keys(events), dated_keys(gone).combine_chunks()))
                yield _folded(events)
                expired = pc.invert(pc.is_in(dated_keys(gone), dated_keys(events).combine_chunks()))
                yield _told_by(gone.filter(expired))

    def _kept_aside(self, events: pa.Table) -> list[str]:
        """Return a file with events that the tables contain; none where there are none."""
        if not events.num_rows:
            return []
        file = self.layers.new_file(OPEN, READY)
        write(self.layers.storage, file, events, LAYOUTS[OPEN])
        return [file]


def kept_under(due_us: NDArray[np.int64], newest_us: int, *, by_due: bool) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield what messages are kept under, and which those are.

    Args:
        due_us: when each is due; one that waits for nothing is at 0.
        newest_us: the time of the newest event.
        by_due: whether those that wait are put to their days.
    """
    today = newest_us // _DAY_US
    days = due_us // _DAY_US
    waits = days > today
    yield READY, ~waits
    if not by_due:
        yield NEW, waits
        return
    distant = days > today + DISTANT_DAYS
    yield LATER, distant
    for day in np.unique(days[waits & ~distant]).tolist():
        yield _day(day), days == day


def dated_keys(rows: pa.Table) -> pa.ChunkedArray:
    """Return of each row what its message is known by: an id that is none of ours may be there on several days."""
    return pc.binary_join_element_wise(rows.column("queue"), rows.column("id"), rows.column("date").cast(pa.string()), "\n")


def _strangers(new: pa.Table, known: Sequence[pa.Table]) -> pa.Table:
    """Return the messages with new events that are not among those that are known."""
    keys = pa.chunked_array([chunk for rows in known for chunk in dated_keys(rows).chunks], pa.string())
    return new.filter(pc.invert(pc.is_in(dated_keys(new), keys.combine_chunks())))


def _folded(events: pa.Table) -> pa.Table:
    folded = pa.repeat(pa.scalar(True), events.num_rows)
    return pa.table({name: folded if name == "folded" else events.column(name) for name in LAYOUTS[OPEN].schema.names})


def _told_by(messages: pa.Table) -> pa.Table:
    """Return the events that rows of `messages` tell of: the first one, the last delivery, the last one.

    They stand for those that have expired, and are before all others.
    """
    tells = (
        ("published", "published_at", tuple(DESCRIPTION_TYPES)),
        ("claimed", "last_delivery", ("worker",)),
        (None, "last_at", ("reason", "error", "target")),
    )
    events = []
    for number, (name, moment, columns) in enumerate(tells, 1):
        known = messages.column(moment).is_valid()
        rows = messages.filter(pc.and_(known, messages.column("complete")) if name == "published" else known)
        count = rows.num_rows
        told = {column: rows.column(column) for column in ("queue", "id", "date", "published_at", *columns)}
        told["event"] = rows.column("last_event") if name is None else pa.repeat(name, count)
        told |= {"ts": rows.column(moment), "epoch": pa.repeat(0, count), "n": pa.repeat(number, count)}
        whole = {column: told.get(column, pa.nulls(count)) for column in EVENTS_SCHEMA.names}
        events.append(pa.table(whole).cast(EVENTS_SCHEMA))
    return _folded(pa.concat_tables(events))


def _day(number: int) -> str:
    return str(np.datetime64(number, "D"))


def _may_have(metadata: parquet.FileMetaData, ids: Sequence[str]) -> bool:
    """Return whether a file may have rows of some messages, from its footer; their ids are in order."""
    place = metadata.schema.to_arrow_schema().get_field_index("id")
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        first = bisect_left(ids, statistics.min)
        if first < len(ids) and ids[first] <= statistics.max:
            return True
    return False
