"""Where an ingest stands in the streams of events.

In a folder of tables that is a folder in the form of Spark's checkpoints. Spark and this package's own ingest read and write the
same, so a folder of tables may change between them at any time.

    metadata      the checkpoint's id
    offsets/N     how far batch N goes, written before it is read
    commits/N     batch N is stored

In an object store the file that lets a micro-batch count says where it ends: both are known in one step.

Sources: org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog, CommitLog, HDFSMetadataLog
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark.folder import TablesFolder, write_file
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.storage import COMMITTED, Storage

#: As many batches are kept, as Spark keeps (`spark.sql.streaming.minBatchesToRetain`).
KEPT_BATCHES = 100
_VERSION = "v1"


class Position(Protocol):
    """Where an ingest stands."""

    @property
    def run(self) -> str:
        """Names the numbers of micro-batches."""

    def planned(self) -> int:
        """Return the number of the last batch that was planned; -1 is none."""

    def stored(self) -> int:
        """Return the number of the last batch that is stored; -1 is none."""

    def offset(self, number: int) -> dict[str, str] | None:
        """Return how far a batch goes; None before the first one."""

    def plan(self, number: int, offset: Mapping[str, str]) -> None:
        """Note how far a batch goes."""

    def commit(self, number: int) -> None:
        """Note that a batch is stored."""


def position_in(storage: Storage) -> Position:
    """Return where the ingest of a place stands."""
    if isinstance(storage, TablesFolder):
        return Checkpoint(storage.root / "checkpoint" / "events")
    return StoredPosition(storage)


class StoredPosition:
    """Where an ingest stands, as the micro-batches in an object store say it.

    Args:
        storage: the store. The caller holds `INGEST_LOCK`.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.run = storage.identity()
        self._offsets: dict[int, dict[str, str]] = {}

    def planned(self) -> int:
        """Return the number of the last batch that is stored: what was planned only is planned anew; -1 is none."""
        return self.stored()

    def stored(self) -> int:
        """Return the number of the last batch that is stored; -1 is none.

        Raises:
            TablesUnusable: the tables have later ones. To begin anew would store their events twice.
        """
        folders = {number: folder for run, number, folder in self._storage.batch_folders() if run == self.run}
        last = max(folders, default=-1)
        if last < (folded := Manifest.read(self._storage).folded.get(self.run, -1)):
            raise TablesUnusable(
                f"{self._storage}/incoming/{self.run} lacks batch {folded}, which says where the ingest stands; restore it"
            )
        if last < 0:
            return -1
        self._offsets[last] = self._storage.once(f"{folders[last]}/{COMMITTED}")["offset"]
        return last

    def offset(self, number: int) -> dict[str, str] | None:
        """Return how far a batch goes, of those that were asked for or planned; None before the first one."""
        return self._offsets.get(number)

    def plan(self, number: int, offset: Mapping[str, str]) -> None:
        """Remember how far a batch goes."""
        self._offsets[number] = dict(offset)

    def commit(self, number: int) -> None:
        """Forget the batches before: the last one says it all."""
        self._offsets = {kept: offset for kept, offset in self._offsets.items() if kept >= number}


class Checkpoint:
    """A checkpoint.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run(self) -> str:
        """Its id: the batches of a new checkpoint begin at 0 again, and must not be taken for the old ones."""
        path = self.path / "metadata"
        if not path.exists():
            write_file(path, json.dumps({"id": str(uuid.uuid4())}).encode())
        identity: str = json.loads(path.read_text(encoding="utf-8"))["id"]
        return identity

    def planned(self) -> int:
        """Return the number of the last batch that was planned; -1 is none."""
        return self._last("offsets")

    def stored(self) -> int:
        """Return the number of the last batch that is stored; -1 is none."""
        return self._last("commits")

    def offset(self, number: int) -> dict[str, str] | None:
        """Return how far a batch goes; None before the first one."""
        if number < 0:
            return None
        # A line with the version, one about the batch, one for each source.
        lines = (self.path / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
        found: dict[str, str] = json.loads(lines[-1])
        return found

    def plan(self, number: int, offset: Mapping[str, str]) -> None:
        """Note how far a batch goes."""
        about = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": {}}
        self._write("offsets", number, json.dumps(about), json.dumps(offset))

    def commit(self, number: int) -> None:
        """Note that a batch is stored, and forget old ones."""
        self._write("commits", number, json.dumps({"nextBatchWatermarkMs": 0}))
        for log in ("offsets", "commits"):
            for old in self._numbers(log):
                if old <= number - KEPT_BATCHES:
                    (self.path / log / str(old)).unlink(missing_ok=True)
                    (self.path / log / f".{old}.crc").unlink(missing_ok=True)

    def _write(self, log: str, number: int, *lines: str) -> None:
        path = self.path / log / str(number)
        # Hadoop's checksum of another file of that name.
        path.with_name(f".{number}.crc").unlink(missing_ok=True)
        write_file(path, "\n".join((_VERSION, *lines)).encode())

    def _numbers(self, log: str) -> list[int]:
        return [int(path.name) for path in (self.path / log).glob("[0-9]*") if path.name.isdigit()]

    def _last(self, log: str) -> int:
        return max(self._numbers(log), default=-1)
