"""Finds the earlier events of messages that have new ones, and takes what was made of them out of the tables.

A message that may have more events keeps those it had in the inner table `open`, and its row in `unfinished`. Of a day with few
such messages all are traced again. Of a day with many, a backlog of a million for instance, only those with new events are: the
others stay in their files, which are small, and of which the few with such messages are written anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.spark.layers import EVENTS, LAYOUTS, Layers, among, message_keys, read, write
from celery_redis_plus.spark.manifest import OPEN, UNFINISHED
from celery_redis_plus.spark.repartition import EVENTS_SCHEMA
from celery_redis_plus.spark.schema import MOMENT

if TYPE_CHECKING:
    from pyarrow import parquet

#: Events of open messages of a day that are traced again without a look: as fast as to find some of them.
FEW_EVENTS = 10_000


class EarlierEvents:
    """The earlier events of messages, for an aggregation.

    Args:
        layers: of the next manifest; it is changed.
        early_since_us: messages acked before their work began at this time or later are kept open.
    """

    def __init__(self, layers: Layers, early_since_us: int) -> None:
        self.layers = layers
        self.early_since = pa.scalar(early_since_us, pa.int64()).cast(MOMENT)

    def taken(self, date: str, fresh: Sequence[str]) -> list[str]:
        """Take the messages of a day that have new events out of the tables; return files with their earlier events.

        Args:
            date: of publishing.
            fresh: the files of that day's new events.
        """
        layers = self.layers
        new = read(layers.storage, fresh, EVENTS_SCHEMA, columns=["queue", "id", "event"])
        files = layers.files(OPEN, date)
        if sum(map(layers.storage.row_count, files)) <= FEW_EVENTS:
            found, known = files, layers.read(OPEN, files, columns=["queue", "id"])
            for table in (OPEN, UNFINISHED):
                layers.drop(table, date, layers.files(table, date))
        else:
            known = self._picked(date, new)
            found = self._kept_aside(date, known)
        return found + self._reopened(date, fresh, self._strangers(new, known))

    def _picked(self, date: str, new: pa.Table) -> pa.Table:
        """Take the open messages that have new events, or are over by now, out of their files; return their earlier events."""
        layers = self.layers
        early = (pc.field("reason") == "early") & (pc.field("ts") < self.early_since)
        chosen = pa.concat_tables(
            [new.select(["queue", "id"]), layers.read(OPEN, layers.files(OPEN, date), early, ["queue", "id"])]
        )
        keys = message_keys(chosen).unique()
        ids = chosen.column("id").unique()
        ordered = sorted(ids.to_pylist())
        picked = [LAYOUTS[OPEN].schema.empty_table()]
        for table, columns in ((OPEN, None), (UNFINISHED, ["queue", "id"])):
            for file in layers.files(table, date):
                if not _may_have(layers.storage.metadata(file), ordered):
                    continue
                rows = layers.read(table, [file], among("id", ids), columns)
                rows = rows.filter(pc.is_in(message_keys(rows), keys))
                if rows.num_rows:
                    layers.without(table, date, file, keys)
                    picked += [rows] if table == OPEN else []
        return pa.concat_tables(picked)

    def _strangers(self, new: pa.Table, known: pa.Table) -> pa.Table:
        """Return the messages with new events of which neither the first event is new nor any is open."""
        published = new.filter(pc.equal(new.column("event"), "published"))
        keys = pa.chunked_array([*message_keys(published).chunks, *message_keys(known).chunks], pa.string())
        return new.filter(pc.invert(pc.is_in(message_keys(new), keys.combine_chunks()))).select(["queue", "id"])

    def _reopened(self, date: str, fresh: Sequence[str], strangers: pa.Table) -> list[str]:
        """Take messages of a day that were gone, and have new events, out of the tables; return a file with their events.

        Only tasks that fail after an early ack do that, and a server that went back to an older state.
        """
        layers = self.layers
        finished = layers.files("messages", date)
        if not finished or not strangers.num_rows:
            return []
        near, wanted = among("id", strangers.column("id").unique()), message_keys(strangers)
        found: list[str] = []
        for file in finished:
            keys = message_keys(layers.read("messages", [file], near, ["queue", "id"]))
            hit = keys.filter(pc.is_in(keys, wanted))
            if len(hit):
                found += hit.to_pylist()
                layers.without("messages", date, file, hit.combine_chunks())
        if not found:
            return []
        earlier = [file for file in layers.files(EVENTS, date) if file not in set(fresh)]
        events = read(layers.storage, earlier, EVENTS_SCHEMA, near)
        return self._kept_aside(date, events.filter(pc.is_in(message_keys(events), pa.array(found))))

    def _kept_aside(self, date: str, events: pa.Table) -> list[str]:
        """Return a file with events that the tables contain; none where there are none."""
        if not events.num_rows:
            return []
        file = self.layers.new_file(OPEN, date)
        folded = pa.repeat(pa.scalar(True), events.num_rows)
        columns = {name: folded if name == "folded" else events.column(name) for name in LAYOUTS[OPEN].schema.names}
        write(self.layers.storage, file, pa.table(columns), LAYOUTS[OPEN])
        return [file]


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
