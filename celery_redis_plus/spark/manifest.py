"""The manifest of a folder of tables: the one file that says which files count. No Spark is needed to read it.

    ROOT/manifest.json           which files are current, replaced in one step
    ROOT/versions/N.json         the manifests of the last quarter of an hour: their files are kept for readers
    ROOT/incoming/RUN/BATCH/     events as they were streamed, with `_committed.json` once the batch is whole
    ROOT/TABLE/vN/day=D/         files of `events`, of the tables, and of what an aggregation keeps for the next one
    ROOT/checkpoint/             where the ingest stands, as Spark keeps it
    ROOT/losses/vN/              losses
    ROOT/checks.parquet          what the last check has found
    ROOT/folder.json             the folder's name, which its reader of events has

A file that no manifest and no `_committed.json` names was left by a process that died, or is superseded: it is never read, and
an aggregation removes it. `day` is the column `date`: in `events` and `messages` the UTC day on which a message was published,
in the other tables the day of the minute.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from celery_redis_plus.errors import InvalidArgument, TablesUnusable

#: Layout of the folder and columns of the tables. An aggregation rebuilds tables of an older version from `events`.
TABLES_VERSION = 3

TABLES = ("messages", "queues", "tasks", "workers")
#: What an aggregation keeps for the next one: the events of messages that may have more of them; these messages' rows, a part of
#: `messages`; the counts and durations of which rows of minutes are made.
OPEN, UNFINISHED, PARTIALS = "open", "unfinished", "partials"
COMMITTED = "_committed.json"
#: The file with what the last check has found.
CHECKS = "checks.parquet"
#: The file by which one process at a time does a kind of work in the folder, and what that is.
TABLES_LOCK, INGEST_LOCK, RUN_LOCK = (".lock", "aggregation or compaction"), (".ingest.lock", "ingest"), (".run.lock", "service")
PUBLICATION_LOCK = (".publication.lock", "publication")
#: How a URL begins; `Path` makes one slash of two.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: Date -> files relative to the root.
Dated = dict[str, list[str]]


@dataclass
class Manifest:
    """The current state of a folder of tables.

    Attributes:
        version: counts the changes; new directories are named after it.
        events: the files of events that the tables contain; incoming batches that they do not contain are in none.
        folded: run -> number of its last batch that the tables contain.
        tables: table -> its files; also those of `OPEN`, `UNFINISHED` and `PARTIALS`.
        backlogs: the file with the ready messages of each queue after the last event; '' where there were none.
        losses: the file of the table of losses; '' where nothing was lost.
        expired_before: days before it are removed in part or whole; '' where none are.
        newest_us: the time of the newest event that the tables contain, µs since the epoch.
        superseded: files of incoming batches that this version has put into others.
    """

    version: int = 0
    events: Dated = field(default_factory=dict)
    folded: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Dated] = field(default_factory=lambda: {table: {} for table in (*TABLES, OPEN, UNFINISHED, PARTIALS)})
    backlogs: str = ""
    losses: str = ""
    expired_before: str = ""
    newest_us: int = 0
    superseded: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path) -> Manifest:
        """Return the manifest of `root`; an empty one for a new folder.

        Raises:
            TablesUnusable: it is damaged, missing, or of a later release.
        """
        path = root / "manifest.json"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            if any((root / "events").glob("v*/day=*")):
                raise TablesUnusable(
                    f"{path} is missing; restore it: it names the stored events, which no other file does"
                ) from None
            return cls()
        return cls.parse(text, str(path), lambda found: _of_older_release(root, found))

    @classmethod
    def parse(cls, text: str, where: str, older: Callable[[dict[str, Any]], Manifest]) -> Manifest:
        """Return the manifest that a text has.

        Args:
            text: JSON.
            where: the text is from, for errors.
            older: returns that of an older release.

        Raises:
            TablesUnusable: as `read`.
        """
        try:
            found = json.loads(text)
            tables_version = found.pop("tables_version")
        except (ValueError, KeyError, AttributeError) as error:
            raise TablesUnusable(f"{where} is no manifest ({error}); restore it: it names the stored events") from None
        if tables_version > TABLES_VERSION:
            raise TablesUnusable(
                f"{where}: tables of version {tables_version}; this release has {TABLES_VERSION}. Upgrade celery-redis-plus"
            )
        if tables_version < TABLES_VERSION:
            return older(found)
        try:
            return cls(**found)
        except TypeError as error:
            raise TablesUnusable(f"{where} has other fields ({error}); restore it: it names the stored events") from None

    def write(self, root: Path) -> None:
        """Replace the manifest in one step: a reader sees the old state or the new one."""
        content = {"tables_version": TABLES_VERSION, **self.__dict__}
        write_json(root / "versions" / f"{self.version:08}.json", content)
        write_json(root / "manifest.json", content)

    def referenced(self) -> set[str]:
        """Return the files that count, relative to the root."""
        dated = (self.events, *self.tables.values())
        named = {file for dates in dated for files in dates.values() for file in files}
        return named | {file for file in (self.backlogs, self.losses) if file} | set(self.superseded)

    def following(self) -> Manifest:
        """Return the next manifest, which has the same content so far."""
        events = {date: list(files) for date, files in self.events.items()}
        tables = {table: {date: list(files) for date, files in dates.items()} for table, dates in self.tables.items()}
        return replace(self, version=self.version + 1, events=events, folded=dict(self.folded), tables=tables, superseded=[])

    @property
    def built(self) -> bool:
        """Whether the tables contain the events that the manifest names; not so after an upgrade."""
        return bool(self.tables[PARTIALS]) or not self.events


def _of_older_release(root: Path, found: dict[str, Any]) -> Manifest:
    """Return the manifest of tables of versions 1 and 2: it has their events, and no tables."""
    manifest = Manifest(version=int(found.get("version", 0)))
    for date, directory in found.get("events", {}).items():
        manifest.events[date] = sorted(path.relative_to(root).as_posix() for path in (root / directory).glob("*.parquet"))
    absorbed = set(found.get("absorbed", ()))
    for batch in batches(root):
        if batch.name not in absorbed:
            for date, files in batch.files.items():
                manifest.events.setdefault(date, []).extend(files)
        manifest.folded[batch.run] = max(batch.number, manifest.folded.get(batch.run, -1))
    if found.get("losses"):
        manifest.losses = f"{found['losses']}/losses.parquet"
    return manifest


@dataclass(frozen=True)
class RowBatch:
    """A whole incoming batch of events.

    Attributes:
        run: names the checkpoint of the ingest.
        number: of the micro-batch.
        rows: how many events.
        files: date -> paths relative to the root.
        losses: what it lacks, as `losses.Loss` has it.
    """

    run: str
    number: int
    rows: int
    files: Dated
    losses: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Its place in the folder of incoming batches."""
        return f"{self.run}/{self.number:08}"


def batches(root: Path) -> list[RowBatch]:
    """Return the whole incoming batches."""
    found = []
    for marker in sorted((root / "incoming").glob(f"*/*/{COMMITTED}")):
        with suppress(FileNotFoundError):
            # An aggregation may remove one meanwhile.
            content: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
            run, number = marker.parts[-3:-1]
            found.append(RowBatch(run, int(number), content["rows"], content["files"], content.get("losses", [])))
    return found


def new_batches(root: Path, manifest: Manifest) -> list[RowBatch]:
    """Return the whole incoming batches that the tables do not contain yet."""
    return [batch for batch in batches(root) if batch.number > manifest.folded.get(batch.run, -1)]


def event_files(root: Path, manifest: Manifest) -> Dated:
    """Return the files of all events there are, also of those that the tables do not contain yet."""
    found = {date: list(files) for date, files in manifest.events.items()}
    for batch in new_batches(root, manifest):
        for date, files in batch.files.items():
            found.setdefault(date, []).extend(files)
    return found


def files(root: str | Path, table: str) -> list[str]:
    """Return the Parquet files of `table` (also `losses` and `checks`) as they are now.

    For readers without Spark: `duckdb.read_parquet(files(root, "messages"))`, `pyarrow.dataset.dataset(files(...))`. The files
    stay for a quarter of an hour at least.

    Raises:
        TablesUnusable: there is no such table in `root`; of losses: nothing was lost.
    """
    root = folder(root)
    manifest = Manifest.read(root)
    has_checks = (root / CHECKS).exists()
    return [str(root / name) for name in names(manifest, event_files(root, manifest), table, root, has_checks=has_checks)]


def names(manifest: Manifest, events: Dated, table: str, where: object, *, has_checks: bool) -> list[str]:
    """Return the files of a table, relative to the root; arguments and errors as of `files`."""
    if table == "checks":
        if not has_checks:
            raise TablesUnusable(f"{where} has no table 'checks' yet: run `celery-redis-plus spark check`")
        return [CHECKS]
    if table == "losses":
        if not manifest.losses:
            raise TablesUnusable(f"{where} has no table 'losses': nothing was lost before the last `aggregate`")
        return [manifest.losses]
    if table == "events":
        dated = [events]
    elif table in TABLES:
        dated = [manifest.tables[table], *([manifest.tables[UNFINISHED]] if table == "messages" else [])]
    else:
        raise TablesUnusable(f"there is no table {table!r}; tables: events, {', '.join(TABLES)}, losses, checks")
    found = [file for dates in dated for of_day in dates.values() for file in of_day]
    if not found:
        raise TablesUnusable(f"{where} has no table {table!r} yet: run `celery-redis-plus spark ingest` and then `aggregate`")
    return sorted(found)


def is_url(root: str | Path) -> bool:
    """Return whether a root is a URL, also one of which a path has left one slash."""
    return _SCHEME.match(str(root)) is not None


def folder(root: str | Path) -> Path:
    """Return the folder of tables that `root` names, absolute: Java does not follow `chdir`.

    Raises:
        InvalidArgument: it is a URL, such as `s3://lake/celery`: a path of that name would be a local folder.
    """
    if is_url(root):
        raise InvalidArgument(
            f"root {str(root)!r} is not allowed; allowed: a folder, which all nodes of a cluster see. `spark publish` copies its "
            "tables to a URL, from which `report --root` reads"
        )
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


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all, also where the machine stops."""
    write_text(path, json.dumps(content, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, as `write_json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
