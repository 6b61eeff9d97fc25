"""Removes old days from the tables. Events of messages that are still open stay, as they are needed to go on."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark import losses
from celery_redis_plus.spark.layers import EVENTS, Layers, message_keys
from celery_redis_plus.spark.leftovers import remove_leftovers
from celery_redis_plus.spark.losses import EXPIRED, Loss
from celery_redis_plus.spark.manifest import MIXED, OPEN, PARTIALS, Manifest
from celery_redis_plus.spark.minute_aggregates import PER_MINUTE
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.versions import commit

if TYPE_CHECKING:
    from celery_redis_plus.spark.storage import Storage

#: What expires, and the tables of it. The tables per minute are made of `PARTIALS`, and go with it.
EXPIRING = {EVENTS: (EVENTS,), "messages": ("messages",), "minutes": (*PER_MINUTE, PARTIALS)}


@dataclass(frozen=True)
class Expired:
    """What an expiry has removed: days of tables, and events."""

    days: int
    events: int


def expire(root: str | Path | Storage, before: date, *, kinds: Collection[str] = tuple(EXPIRING)) -> Expired:
    """Remove the days before a date: of `events` and `messages` those of publishing, of the others those of the minute.

    Killed at any moment, the tables are as they were before or as they are after. The files go with the first aggregation after
    a quarter of an hour.

    Args:
        root: the folder of tables, or their URL.
        before: the first day that stays, UTC.
        kinds: of `EXPIRING`; by default all.

    Raises:
        InvalidArgument: there is no such kind.
        TablesUnusable: an aggregation or compaction runs there, or the tables are of an older release.
    """
    if unknown := set(kinds).difference(EXPIRING):
        raise InvalidArgument(f"there is nothing {min(unknown)!r} that expires; allowed: {', '.join(EXPIRING)}")
    storage = opened(root)
    with storage.locked():
        old = Manifest.read(storage)
        # Else it is not known which messages are unfinished: their events would go.
        old.check_release(storage)
        remove_leftovers(storage, old)
        new = old.following()
        layers = Layers(storage, new)
        days, lost = 0, []
        still = layers.read(OPEN, [file for files in new.tables[OPEN].values() for file in files], columns=["queue", "id"])
        for table in (table for kind in kinds for table in EXPIRING[kind]):
            shared = layers.files(table, MIXED)
            if shared and layers.read(table, shared, pc.field("date") < before, columns=["date"]).num_rows:
                layers.divide(table, few_too=True)
            for day in [day for day in layers.dated(table) if day < before.isoformat()]:
                files = layers.files(table, day)
                if table == EVENTS:
                    found = list(_expire_events(layers, day, files, message_keys(still).combine_chunks()))
                    days += bool(found)
                    lost += found
                else:
                    layers.drop(table, day, files)
                    days += table != PARTIALS
        if not days:
            return Expired(0, 0)
        new.losses = losses.with_losses(layers, old, lost)
        new.expired_before = max(old.expired_before, before.isoformat())
        commit(layers)
        return Expired(days, sum(loss.count for loss in lost))


def first_kept(keep_days: int) -> date:
    """Return the first of the last days, today included."""
    return datetime.now(UTC).date() - timedelta(days=keep_days - 1)


def _expire_events(layers: Layers, day: str, files: list[str], still: pa.Array) -> Iterator[Loss]:
    """Leave the events of a day that are of open messages (`still`); yield what went."""
    places = layers.read(EVENTS, files, columns=["queue", "id", "epoch", "n"])
    gone = places.filter(pc.invert(pc.is_in(message_keys(places), still)))
    if not gone.num_rows:
        return
    ids = places.filter(pc.is_in(message_keys(places), still)).column("id").unique()
    kept = layers.read(EVENTS, files, pc.field("id").isin(ids))
    layers.replace(EVENTS, day, files, kept.filter(pc.is_in(message_keys(kept), still)))
    now = time.time_ns() // 1000
    counted = gone.group_by(["queue", "epoch"]).aggregate([("n", "min"), ("n", "max"), ("n", "count")])
    for row in counted.to_pylist():
        yield Loss(row["queue"], EXPIRED, row["epoch"], row["n_min"], row["n_max"], row["n_count"], None, None, now)
