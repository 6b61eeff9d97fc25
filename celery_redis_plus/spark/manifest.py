"""The manifest of a folder of tables: the one file that says which directories count. No Spark is needed to read it.

    ROOT/manifest.json           which directories are current, replaced in one step
    ROOT/incoming/RUN/BATCH/     events as they were streamed, with `_committed.json` once the batch is whole
    ROOT/events/vN/day=D/        the same, compacted
    ROOT/TABLE/vN/day=D/         messages, queues, tasks, workers
    ROOT/checkpoint/             Spark's offsets
    ROOT/losses/vN/              losses
    ROOT/checks.parquet          what the last check has found
    ROOT/folder.json             the folder's name, which its reader of events has

A directory that no manifest and no `_committed.json` names was left by a process that died, or is superseded: it is never read,
and the next aggregation removes it. The directories are named after the column `date`: in `events` and `messages` the UTC day on
which a message was published, in the other tables the day of the minute.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_redis_plus.errors import InvalidArgument, TablesUnusable

#: Layout of the folder and columns of the tables. An aggregation rebuilds tables of an older version from `events`.
TABLES_VERSION = 2

TABLES = ("messages", "queues", "tasks", "workers")
COMMITTED = "_committed.json"
#: The file by which one process at a time does a kind of work in the folder, and what that is.
TABLES_LOCK, INGEST_LOCK = (".lock", "aggregation or compaction"), (".ingest.lock", "ingest")
#: How a URL begins; `Path` makes one slash of two.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass
class Manifest:
    """The current state of a folder of tables.

    Attributes:
        version: counts the changes; new directories are named after it.
        events: date -> directory of compacted events.
        absorbed: names (`RUN/BATCH`) of the incoming batches that the compacted events contain.
        aggregated: date -> the sources of that date's events that the tables contain.
        days: date of publishing -> days on which those messages had events.
        tables: table -> date -> directory.
        losses: the directory of the table of losses; '' where nothing was lost.
        counted: names of the incoming batches whose losses that table contains.
    """

    version: int = 0
    events: dict[str, str] = field(default_factory=dict)
    absorbed: list[str] = field(default_factory=list)
    aggregated: dict[str, list[str]] = field(default_factory=dict)
    days: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, dict[str, str]] = field(default_factory=lambda: {table: {} for table in TABLES})
    losses: str = ""
    counted: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path) -> Manifest:
        """Return the manifest of `root`; an empty one for a new folder.

        Raises:
            TablesUnusable: it is damaged, missing, or of a later release.
        """
        path = root / "manifest.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            tables_version = found.pop("tables_version")
        except FileNotFoundError:
            if any((root / "events").glob("v*/day=*")):
                raise TablesUnusable(
                    f"{path} is missing; restore it: it names the compacted events, which no other file does"
                ) from None
            return cls()
        except (ValueError, KeyError, AttributeError) as error:
            raise TablesUnusable(f"{path} is no manifest ({error}); restore it: it names the compacted events") from None
        if tables_version > TABLES_VERSION:
            raise TablesUnusable(
                f"{path}: tables of version {tables_version}; this release has {TABLES_VERSION}. Upgrade celery-redis-plus"
            )
        try:
            manifest = cls(**found)
        except TypeError as error:
            raise TablesUnusable(f"{path} has other fields ({error}); restore it: it names the compacted events") from None
        if tables_version < TABLES_VERSION:
            manifest.aggregated, manifest.days, manifest.tables = {}, {}, {table: {} for table in TABLES}
        return manifest

    def write(self, root: Path) -> None:
        """Replace the manifest in one step: a reader sees the old state or the new one."""
        write_json(root / "manifest.json", {"tables_version": TABLES_VERSION, **self.__dict__})

    def referenced(self) -> set[str]:
        """Return the directories that count, relative to the root."""
        return {
            *self.events.values(),
            *(directory for dates in self.tables.values() for directory in dates.values()),
            *([self.losses] if self.losses else []),
        }


@dataclass(frozen=True)
class RowBatch:
    """A whole incoming batch of events.

    Attributes:
        name: `RUN/BATCH`.
        rows: how many events.
        files: date -> paths relative to the root.
        losses: what it lacks, as `losses.Loss` has it.
    """

    name: str
    rows: int
    files: dict[str, list[str]]
    losses: list[dict[str, Any]]


def batches(root: Path) -> list[RowBatch]:
    """Return the whole incoming batches, absorbed ones without files."""
    found = []
    for marker in sorted((root / "incoming").glob(f"*/*/{COMMITTED}")):
        content: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
        found.append(RowBatch("/".join(marker.parts[-3:-1]), content["rows"], content["files"], content.get("losses", [])))
    return found


def sources(root: Path, manifest: Manifest) -> dict[str, dict[str, list[str]]]:
    """Return the events there are: date -> source (an incoming batch, or a compacted directory) -> files relative to the root."""
    found: dict[str, dict[str, list[str]]] = {}
    for date, directory in manifest.events.items():
        files = sorted(path.relative_to(root).as_posix() for path in (root / directory).glob("*.parquet"))
        found.setdefault(date, {})[directory] = files
    absorbed = set(manifest.absorbed)
    for batch in batches(root):
        if batch.name not in absorbed:
            for date, files in batch.files.items():
                found.setdefault(date, {})[batch.name] = files
    return found


def files(root: str | Path, table: str) -> list[str]:
    """Return the Parquet files of `table` (also `losses` and `checks`) as they are now.

    For readers without Spark: `duckdb.read_parquet(files(root, "messages"))`, `pyarrow.dataset.dataset(files(...))`. An
    aggregation keeps the files of the version before it, so a list of files is valid until the aggregation after the next.

    Raises:
        TablesUnusable: there is no such table in `root`; of losses: nothing was lost.
    """
    root = folder(root)
    manifest = Manifest.read(root)
    if table == "checks":
        if not (root / "checks.parquet").exists():
            raise TablesUnusable(f"{root} has no table 'checks' yet: run `celery-redis-plus spark check`")
        return [str(root / "checks.parquet")]
    if table == "losses":
        if not manifest.losses:
            raise TablesUnusable(f"{root} has no table 'losses': nothing was lost before the last `aggregate`")
        return [str(root / manifest.losses / "losses.parquet")]
    if table == "events":
        found = [root / file for by_source in sources(root, manifest).values() for names in by_source.values() for file in names]
    elif table in TABLES:
        found = [path for directory in manifest.tables[table].values() for path in (root / directory).glob("*.parquet")]
    else:
        raise TablesUnusable(f"there is no table {table!r}; tables: events, {', '.join(TABLES)}, losses, checks")
    if not found:
        raise TablesUnusable(f"{root} has no table {table!r} yet: run `celery-redis-plus spark ingest` and then `aggregate`")
    return sorted(str(path) for path in found)


def folder(root: str | Path) -> Path:
    """Return the folder of tables that `root` names, absolute: Java does not follow `chdir`.

    Raises:
        InvalidArgument: it is a URL, such as `s3://lake/celery`: a path of that name would be a local folder.
    """
    if _SCHEME.match(str(root)):
        raise InvalidArgument(f"root {str(root)!r} is not allowed; allowed: a folder, which all nodes of a cluster see")
    return Path(root).absolute()


def folder_id(root: Path) -> str:
    """Return what names this folder of tables, also after a move; made when first asked for."""
    path = root / "folder.json"
    if not path.exists():
        write_json(path, {"id": uuid.uuid4().hex[:16]})
    identity: str = json.loads(path.read_text(encoding="utf-8"))["id"]
    return identity


@contextmanager
def locked(root: Path, lock: tuple[str, str] = TABLES_LOCK) -> Iterator[None]:
    """Keep others that do the same work out of `root`; a killed process leaves no lock behind.

    Raises:
        TablesUnusable: another one is at work.
    """
    name, work = lock
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / name, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TablesUnusable(f"another {work} runs in {root}; wait until it is done") from None
        yield
    finally:
        os.close(descriptor)


def remove_unreferenced(root: Path, *manifests: Manifest) -> int:
    """Remove the versioned directories that none of `manifests` names, and the incoming ones that all of them have absorbed.

    Returns how many directories went.
    """
    kept = set().union(*(manifest.referenced() for manifest in manifests))
    removed = 0
    for table in ("events", "losses", *TABLES):
        for directory in (root / table).glob("v*/day=*"):
            if directory.relative_to(root).as_posix() not in kept:
                shutil.rmtree(directory)
                removed += 1
        for version in (root / table).glob("v*"):
            if not any(version.glob("day=*")):
                shutil.rmtree(version)
    for name in set.intersection(*(set(manifest.absorbed) for manifest in manifests)):
        removed += _empty(root / "incoming" / name)
    return removed


def _empty(batch: Path) -> int:
    """Remove an absorbed batch's files. Its marker stays: Spark may run the batch again, and must find that it is done."""
    directories = list(batch.glob("day=*"))
    for directory in directories:
        shutil.rmtree(directory)
    marker = batch / COMMITTED
    if directories and marker.exists():
        write_json(marker, json.loads(marker.read_text(encoding="utf-8")) | {"files": {}})
    return len(directories)


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all, also where the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
