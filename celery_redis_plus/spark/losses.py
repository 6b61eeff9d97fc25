"""The table `losses`: events that the tables lack, and why. A figure is too low where one of them touches its period.

`ingest` counts them with each micro-batch (`loss_counter.py`) and keeps them in its `_committed.json`, so each counts once. An
aggregation puts them into the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.spark.arrow_columns import microseconds
from celery_redis_plus.spark.layers import EVENTS
from celery_redis_plus.spark.manifest import Manifest, RowBatch, event_files, new_batches
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.schema import arrow, ddl

if TYPE_CHECKING:
    from celery_redis_plus.spark.layers import Layers
    from celery_redis_plus.spark.storage import Storage

#: Why events are missing: trimmed before they were read; not written as memory was full; left out by `event_log_sample`; no event
#: had the number, as somebody else wrote into the stream; or `spark expire` or `spark forget` has removed them.
TRIMMED, MEMORY_FULL, SAMPLED, NO_EVENT, EXPIRED = "trimmed", "memory full", "sampled", "no event", "expired"
FORGOTTEN = "forgotten"
#: An archive had events that were noted as trimmed. Micro-batches tell it; the table has neither then.
SUPPLIED = "supplied"
#: With these, nothing is lost.
HARMLESS = (NO_EVENT, EXPIRED, FORGOTTEN)
_WHY = {
    TRIMMED: "were trimmed before they were read",
    MEMORY_FULL: "were not written, as memory was full",
    SAMPLED: "were left out by event_log_sample (estimated)",
    NO_EVENT: "were none: somebody else wrote into the stream",
    EXPIRED: "were removed by `spark expire`",
    FORGOTTEN: "were removed by `spark forget`",
    SUPPLIED: "that were noted as trimmed come from the archive",
}

#: Those of which some between the first and the last are there, one row an epoch.
PARTS = frozenset({EXPIRED, FORGOTTEN})
#: Those that are numbers of an epoch.
RANGES = frozenset({TRIMMED, NO_EVENT, SUPPLIED}) | PARTS

LOSS_COLUMNS = {
    "queue": "string",
    "why": "string",
    "epoch": "bigint",
    "first": "bigint",
    "last": "bigint",
    "count": "bigint",
    "from_at": "timestamp",
    "to_at": "timestamp",
    "noted_at": "timestamp",
    "shard": "int",
}
LOSS_DDL = ddl(LOSS_COLUMNS)
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Loss:
    """Events of a queue that are missing.

    Attributes:
        queue: its name.
        why: one of the reasons above.
        epoch: of the queue's event log.
        first, last: the numbers of the events in that epoch; of `MEMORY_FULL`, in the log's count of unwritten events; None where
            they have none.
        count: how many; of `SAMPLED`, an estimate.
        from_at, to_at: they happened between these times, µs since the epoch; None is not known.
        noted_at: when it was found, µs.
        shard: the number of the shard that had them; 0 of a broker without shards.
    """

    queue: str
    why: str
    epoch: int
    first: int | None
    last: int | None
    count: int
    from_at: int | None
    to_at: int | None
    noted_at: int
    shard: int = 0

    def __str__(self) -> str:
        """Return a sentence about it."""
        numbers = f", {self.epoch}-{self.first} to {self.epoch}-{self.last}," if self.why in RANGES else ""
        of_shard = f" of shard {self.shard}" if self.shard else ""
        return f"queue {self.queue!r}{of_shard}: {self.count:,} events{numbers} {_WHY[self.why]}"


def sentence(counts: Iterable[tuple[str, int]]) -> str:
    """Return what is missing, of (why, how many events); '' where nothing is."""
    return ", ".join(f"{count:,} events {_WHY[why]}" for why, count in counts if count)


def noted(root: str | Path | Storage, manifest: Manifest) -> list[Loss]:
    """Return all losses that are known, also those that no aggregation has put into the table yet."""
    storage = opened(root)
    return list(_left([*_stored(storage, manifest), *_of(new_batches(storage, manifest))]))


def collect(layers: Layers, manifest: Manifest, new: Sequence[RowBatch]) -> str:
    """Return the file of the table with the losses of new micro-batches; '' where nothing was ever lost.

    Args:
        layers: of the next manifest.
        manifest: the one before.
        new: the batches that the next one contains in addition.
    """
    return with_losses(layers, manifest, [_dated(layers, manifest, loss) for loss in _of(new)])


def with_losses(layers: Layers, manifest: Manifest, added: Sequence[Loss]) -> str:
    """Return the file of the table with further losses; arguments as of `collect`."""
    if not added:
        return manifest.losses
    rows = _merged(_left([*_stored(layers.storage, manifest), *added]))
    if not rows:
        return ""
    file = layers.new_file("losses", "all")
    layers.storage.write_table(file, pa.Table.from_pylist([asdict(loss) for loss in rows], schema=arrow(LOSS_COLUMNS)))
    return file


def _stored(storage: Storage, manifest: Manifest) -> list[Loss]:
    if not manifest.losses:
        return []
    table = rows_of(storage, manifest.losses)
    for name in ("from_at", "to_at", "noted_at"):
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(pa.int64()))
    return [Loss(**row) for row in table.to_pylist()]


def rows_of(storage: Storage, file: str) -> pa.Table:
    """Return the rows of the table's file."""
    table = storage.table(file)
    if "shard" not in table.column_names:
        # Of a release that read one shard only.
        table = table.append_column("shard", pa.repeat(pa.scalar(0, pa.int32()), table.num_rows))
    return table.select(list(LOSS_COLUMNS)).cast(arrow(LOSS_COLUMNS))


def _of(incoming: Iterable[RowBatch]) -> list[Loss]:
    return [Loss(**loss) for batch in incoming for loss in batch.losses]


def _left(losses: Sequence[Loss]) -> Iterator[Loss]:
    """Yield the losses without what was supplied later."""
    supplied = [loss for loss in losses if loss.why == SUPPLIED]
    for loss in losses:
        parts = [loss] if loss.why != SUPPLIED else []
        for other in supplied if loss.why == TRIMMED else ():
            parts = [part for whole in parts for part in _without(whole, other)]
        yield from parts


def _without(loss: Loss, other: Loss) -> Iterator[Loss]:
    """Yield what is left of numbers without those of another."""
    first, last = loss.first or 0, loss.last or 0
    low, high = max(first, other.first or 0), min(last, other.last or 0)
    if (loss.queue, loss.epoch) != (other.queue, other.epoch) or low > high:
        yield loss
        return
    if first < low:
        yield replace(loss, last=low - 1, count=low - first)
    if high < last:
        yield replace(loss, first=high + 1, count=last - high)


def _merged(losses: Iterable[Loss]) -> list[Loss]:
    """Return the losses: of what was removed one an epoch, of what is no range of numbers one a queue and day.

    Each micro-batch may have some of each queue.
    """
    found: list[Loss] = []
    days: dict[tuple[object, ...], Loss] = {}
    for loss in losses:
        if loss.why in {TRIMMED, NO_EVENT}:
            found.append(loss)
            continue
        key = (loss.queue, loss.shard, loss.why, loss.epoch, loss.why not in PARTS and loss.noted_at // _DAY_US)
        other = days.get(key)
        days[key] = loss if other is None else _together(other, loss)
    return found + list(days.values())


def _together(one: Loss, other: Loss) -> Loss:
    def least(first: int | None, second: int | None) -> int | None:
        return None if first is None or second is None else min(first, second)

    def most(first: int | None, second: int | None) -> int | None:
        return None if first is None or second is None else max(first, second)

    return replace(
        one,
        first=least(one.first, other.first),
        last=most(one.last, other.last),
        count=one.count + other.count,
        from_at=least(one.from_at, other.from_at),
        to_at=most(one.to_at, other.to_at),
        noted_at=max(one.noted_at, other.noted_at),
    )


def _dated(layers: Layers, manifest: Manifest, loss: Loss) -> Loss:
    """Return a loss with the time of the event before it, which another micro-batch has read."""
    if loss.why != TRIMMED or loss.from_at is not None or not loss.first or loss.first == 1:
        return loss
    files = [file for of_day in event_files(layers.storage, manifest).values() for file in of_day]
    before = (pc.field("queue") == loss.queue) & (pc.field("epoch") == loss.epoch) & (pc.field("n") == loss.first - 1)
    found = layers.read(EVENTS, files, before, ["ts"])
    return replace(loss, from_at=int(microseconds(found.column("ts"))[0])) if found.num_rows else loss
