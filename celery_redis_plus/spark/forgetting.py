"""Removes messages from the tables for ever: their rows, events and payloads, from every file, version and open state.

What remains are counts: the minutes in which they happened, and how many events are missing (`losses`).
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.errors import NoPermission
from celery_redis_plus.spark import losses, receipts
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS, Layers, among, message_keys, write
from celery_redis_plus.spark.leftovers import remove_leftovers
from celery_redis_plus.spark.losses import FORGOTTEN, Loss
from celery_redis_plus.spark.manifest import OPEN, PARTIALS, UNFINISHED, Manifest
from celery_redis_plus.spark.minute_aggregates import backlog_changes
from celery_redis_plus.spark.minute_tables import MinuteTables
from celery_redis_plus.spark.repartition import EVENTS_IN_MEMORY
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.versions import commit
from celery_redis_plus.spark.views import connected, rows_of

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import EventLogs, LogServer
    from celery_redis_plus.keys import QueueKeys
    from celery_redis_plus.spark.storage import Storage

logger = logging.getLogger(__name__)

#: Where rows of single messages are.
_TABLES = (EVENTS, "messages", UNFINISHED, OPEN)
#: Keys that are asked for at once.
_KEYS_AT_ONCE = 1000


@dataclass(frozen=True)
class Forgotten:
    """What was removed, or would be.

    Attributes:
        receipt: its id; '' in a dry run, and where nothing was chosen.
        messages: how many were chosen.
        unfinished: of these, how many may still have events, which are stored when they come.
        events: removed.
        payloads: of these, how many had one.
        files: that were written anew.
        broker: keys of the broker that still have them -> how many entries; None where nobody has looked.
    """

    receipt: str = ""
    messages: int = 0
    unfinished: int = 0
    events: int = 0
    payloads: int = 0
    files: int = 0
    broker: Mapping[str, int] | None = field(default=None)


def forget(root: str | Path | Storage, where: str, log: EventLogs | None = None, *, dry_run: bool = False) -> Forgotten:
    """Remove the messages that the SQL condition `where` chooses from `messages`.

    New events are aggregated first. Killed at any moment, run it again, or any aggregation: it is whole then. Readers of an
    earlier version lose its files at once.

    Args:
        root: the folder of tables, or their URL.
        where: in DuckDB's dialect.
        log: the broker, to look for what it still has.
        dry_run: count only.

    Raises:
        InvalidArgument: the condition cannot be understood.
        SparkUnavailable: DuckDB is not installed.
        TablesUnusable: there are no tables, or an aggregation or compaction runs.
    """
    storage = opened(root)
    while not dry_run and fold(storage, most=EVENTS_IN_MEMORY).events:
        """All that is stored has to be in the tables."""
    with storage.locked():
        old = Manifest.read(storage)
        remove_leftovers(storage, old)
        # The condition itself may tell who it was about.
        digest = hashlib.sha256(where.encode()).hexdigest()
        chosen = _chosen(storage, where, receipts.unfinished_messages(storage, digest))
        broker = None if log is None else kept_by_broker(log, chosen)
        done = _Forgetting(storage, old, chosen)
        counted = Forgotten("", chosen.num_rows, done.unfinished, done.events, done.payloads, done.files, broker)
        if dry_run or not chosen.num_rows:
            return counted
        receipt = uuid.uuid4().hex
        told = {**counted.__dict__, "condition_sha256": digest, "version": done.new.version}
        told["unfinished_messages"] = done.unfinished_messages.to_pylist()
        receipts.begin(storage, receipt, {name: value for name, value in told.items() if name != "receipt"})
        done.run(receipt)
        remove_leftovers(storage, done.new)
        return Forgotten(receipt, *list(counted.__dict__.values())[1:])


def kept_by_broker(log: EventLogs, chosen: pa.Table) -> dict[str, int]:
    """Return the broker's keys that have some of the messages (`queue`, `id`): the messages themselves, and their events.

    Raises:
        ServerUnreachable: and its kin from `errors`.
    """
    found: Counter[str] = Counter()
    by_queue: dict[str, list[str]] = {}
    for row in chosen.select(["queue", "id"]).to_pylist():
        by_queue.setdefault(row["queue"], []).append(row["id"])
    for queue, ids in by_queue.items():
        for own, keys in log.everywhere(queue):
            found.update(_kept_there(own, keys, queue, ids))
    return dict(found)


def _kept_there(log: LogServer, keys: QueueKeys, queue: str, ids: Sequence[str]) -> dict[str, int]:
    """Return the keys of a queue on one server that have some messages."""
    found: dict[str, int] = {}
    for first in range(0, len(ids), _KEYS_AT_ONCE):
        names = [
            prefix + tag.encode() for tag in ids[first : first + _KEYS_AT_ONCE] for prefix in (keys.message, keys.event_index)
        ]
        try:
            there = log.ask([("EXISTS", name) for name in names])
        except NoPermission as error:
            # The role of a reader may see events alone.
            logger.warning(
                "queue %r: whether the broker still has the messages is unknown: %s", queue, error, extra={"queue": queue}
            )
            break
        found |= {name.decode("utf-8", "replace"): 1 for name, exists in zip(names, there, strict=True) if exists}
    if count := _events_of(log, queue, set(ids)):
        found[keys.events.decode("utf-8", "replace")] = count
    return found


def _events_of(log: LogServer, queue: str, ids: set[str]) -> int:
    """Return how many events of some messages a queue's stream has."""
    from celery_redis_plus.events import read_entry

    numberings, _ = log.sound_numberings([queue], strict=False)
    count = 0
    for numbering in numberings.values():
        for epoch, low, high in numbering.ranges(numbering.trimmed, numbering.total):
            for entries in log.chunks(queue, epoch, low, high, 5000):
                read = (read_entry(fields) for _, fields in entries)
                count += sum(event is not None and event.id in ids for event in read)
    return count


def _chosen(storage: Storage, where: str, also: Sequence[Mapping[str, str]]) -> pa.Table:
    """Return queue and id of the messages that a condition chooses, and of those of others that are there.

    A message whose first events were forgotten has no task any more by which a condition could choose it.
    """
    connection = connected(Snapshot(storage))
    chosen = "SELECT DISTINCT queue, id FROM messages"
    try:
        found = rows_of(connection, f"{chosen} WHERE {where}")
        if also:
            connection.register("chosen_before", pa.Table.from_pylist(list(also)))
            again = rows_of(connection, f"{chosen} SEMI JOIN chosen_before USING (queue, id)")
            found = pa.concat_tables([found, again]).group_by(["queue", "id"]).aggregate([])
        return found
    finally:
        connection.close()


class _Forgetting:
    """The version in which some messages are no more."""

    def __init__(self, storage: Storage, old: Manifest, chosen: pa.Table) -> None:
        self.storage = storage
        self.new = old.following()
        self.layers = Layers(storage, self.new)
        self.keys = message_keys(chosen).combine_chunks()
        self.near = among("id", chosen.column("id").unique()) if chosen.num_rows else None
        self.touched = [
            (table, date, file)
            for table in _TABLES
            for date in self.layers.dated(table)
            for file in self.layers.files(table, date)
            if self._has_some(table, file)
        ]
        self.files = len(self.touched)
        self.lost = list(self._losses())
        self.events = sum(loss.count for loss in self.lost)
        self.payloads = sum(pc.count(self._rows(file, ["payload"])["payload"]).as_py() for file in self._of(EVENTS))
        rows = [LAYOUTS[UNFINISHED].schema.empty_table().select(["queue", "id", "state"])]
        unfinished = pa.concat_tables(rows + [self._rows(file, ["state"], UNFINISHED) for file in self._of(UNFINISHED)])
        self.unfinished_messages = unfinished.select(["queue", "id"])
        self.ready = unfinished.filter(pc.equal(unfinished["state"], "PENDING")).group_by("queue").aggregate([([], "count_all")])
        self.unfinished = self.unfinished_messages.num_rows

    def run(self, receipt: str) -> None:
        """Write the files without them, and let the version count."""
        for table, date, file in self.touched:
            self.layers.without(table, date, file, self.keys)
        if self.ready.num_rows:
            self._leave_backlogs()
        self.new.losses = losses.with_losses(self.layers, self.new, self.lost)
        self.new.forgetting = [receipt]
        commit(self.layers)

    def _leave_backlogs(self) -> None:
        """Take messages that are ready out of the backlogs, from the newest minute on: their next event no longer tells so."""
        changes = backlog_changes(self.ready["queue"], pc.negate(self.ready["count_all"]), self.new.newest_us)
        file = self.layers.new_file(PARTIALS, uuid.uuid4().hex)
        write(self.storage, file, changes, LAYOUTS[PARTIALS])
        MinuteTables(self.layers).add([file])

    def _of(self, table: str) -> Iterator[str]:
        return (file for of_table, _, file in self.touched if of_table == table)

    def _has_some(self, table: str, file: str) -> bool:
        return bool(self._rows(file, [], table).num_rows)

    def _rows(self, file: str, columns: Sequence[str], table: str = EVENTS) -> pa.Table:
        """Return columns of the messages' rows in a file."""
        if self.near is None:
            return LAYOUTS[table].schema.empty_table()
        rows = self.layers.read(table, [file], self.near, ["queue", "id", *columns])
        return rows.filter(pc.is_in(message_keys(rows), self.keys))

    def _losses(self) -> Iterator[Loss]:
        now = time.time_ns() // 1000
        parts = [self._rows(file, ["epoch", "n"]) for file in self._of(EVENTS)]
        if parts:
            counted = pa.concat_tables(parts).group_by(["queue", "epoch"]).aggregate([("n", "min"), ("n", "max"), ("n", "count")])
            for row in counted.to_pylist():
                yield Loss(row["queue"], FORGOTTEN, row["epoch"], row["n_min"], row["n_max"], row["n_count"], None, None, now)
