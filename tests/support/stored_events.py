"""Events in a folder of tables as `spark ingest` stores them, without Spark and without a server."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus import events
from celery_redis_plus.event_log.batches import batch
from celery_redis_plus.spark.layers import by_file
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import COMMITTED
from tests.support.event_streams import START_MS

if TYPE_CHECKING:
    from celery_redis_plus.events import Event
    from celery_redis_plus.spark.losses import Loss


class StoredEvents:
    """The events of one ingest.

    Args:
        root: the folder of tables.
        run: names the ingest.
    """

    def __init__(self, root: Path, run: str = "run") -> None:
        self.root = root
        self.run = run
        self.numbers = itertools.count()
        #: Queue -> the number of its last event.
        self.last: dict[str, int] = defaultdict(int)

    def add(self, added: Mapping[str, Sequence[Event]], losses: Sequence[Loss] = (), payload: bytes | None = None) -> None:
        """Store events, by queue, as one micro-batch."""
        folder, storage = f"incoming/{self.run}/{next(self.numbers):08}", opened(self.root)
        read = pa.Table.from_batches([self._batch(queue, rows, payload) for queue, rows in added.items() if rows])
        read = read.append_column("date", pc.coalesce(read.column("published_at"), read.column("ts")).cast(pa.date32()))
        files = {}
        for date, rows_of_file in by_file(read):
            files[date] = [f"{folder}/day={date}/part.parquet"]
            storage.write_table(files[date][0], rows_of_file)
        storage.write_json(
            f"{folder}/{COMMITTED}", {"rows": read.num_rows, "files": files, "losses": [asdict(loss) for loss in losses]}
        )

    def _batch(self, queue: str, rows: Sequence[Event], payload: bytes | None) -> pa.RecordBatch:
        entries = []
        for event in rows:
            self.last[queue] += 1
            fields = [events.FIELD, events.encode(event)]
            if payload is not None and event.event == "published":
                fields += [events.PAYLOAD_FIELD, payload]
            entries.append((f"{START_MS}-{self.last[queue]}".encode(), fields))
        return batch(queue, entries)
