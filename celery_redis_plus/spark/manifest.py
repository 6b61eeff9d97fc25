"""The manifest of a folder of tables: the one file that says which files count. No Spark is needed to read it.

    ROOT/manifest.json           which files are current, replaced in one step
    ROOT/versions/N.json         the manifests of the last quarter of an hour: their files are kept for readers
    ROOT/incoming/RUN/BATCH/     events as they were streamed, with `_committed.json` once the batch is whole
    ROOT/TABLE/vN/day=D/         files of `events`, of the tables, and of what an aggregation keeps for the next one
    ROOT/checkpoint/             where the ingest stands, as Spark keeps it
    ROOT/losses/vN/              losses
    ROOT/checks.parquet          what the last check has found
    ROOT/receipts/ID.json        what `spark forget` has removed
    ROOT/folder.json             the folder's name, which its reader of events has

A file that no manifest and no `_committed.json` names was left by a process that died, or is superseded: it is never read, and
an aggregation removes it. `day` is the column `date`: in `events` and `messages` the UTC day on which a message was published,
in the other tables the day of the minute. Messages that may have more events are kept by when they are due (`open_messages.py`).
Where several days have few new rows each, these share a file (`MIXED`) until they are many, so that cost and files follow the
news and not the days that they touch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import COMMITTED, Storage

#: Layout of the folder and columns of the tables. An aggregation rebuilds tables of an older version from `events`, but for those
#: that are as this release writes them: from `OLDEST_KEPT` on.
TABLES_VERSION, OLDEST_KEPT = 8, 7
#: Manifests from this version of the tables on have the fields of `Manifest`.
OLDEST_OF_THESE_FIELDS = 3

TABLES = ("messages", "queues", "tasks", "workers")
#: What an aggregation keeps for the next one: the events of messages that may have more of them; these messages' rows, a part of
#: `messages`; the counts and durations of which rows of minutes are made.
OPEN, UNFINISHED, PARTIALS = "open", "unfinished", "partials"
#: In the place of a day, in `events` and `messages`: files with rows of several.
MIXED = "mixed"
#: The file with what the last check has found.
CHECKS = "checks.parquet"
#: Date -> files relative to the root.
Dated = dict[str, list[str]]


def dated_folder(date: str) -> str:
    """Return the folder of files that are kept under a day, or `MIXED`: DuckDB makes a column of what stands behind `day=`."""
    return MIXED if date == MIXED else f"day={date}"


def date_of(folder: str) -> str | None:
    """Return what the files of such a folder are kept under; None for another folder."""
    return folder if folder == MIXED else folder.removeprefix("day=") if folder.startswith("day=") else None


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
        forgetting: receipts (`forgetting.py`) of what this version has removed; no file of an earlier one may stay.
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
    forgetting: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, root: str | Path | Storage) -> Manifest:
        """Return the manifest of `root`; an empty one for a new folder.

        Raises:
            TablesUnusable: it is damaged, missing, or of a later release.
        """
        storage = opened(root)
        head = storage.head()
        if head is None:
            return cls()

        def older(tables_version: int, found: dict[str, Any]) -> Manifest:
            if head.published:
                raise TablesUnusable(f"{storage} has tables of an older release: run `spark publish` of this one")
            return _of_older_release(storage, tables_version, found)

        return cls.parse(head.text, head.name, older)

    @classmethod
    def parse(cls, text: str, where: str, older: Callable[[int, dict[str, Any]], Manifest]) -> Manifest:
        """Return the manifest that a text has.

        Args:
            text: JSON.
            where: the text is from, for errors.
            older: returns that of an older release, of the version of its tables and its fields.

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
        try:
            return cls(**found) if tables_version >= OLDEST_KEPT else older(tables_version, found)
        except TypeError as error:
            raise TablesUnusable(f"{where} has other fields ({error}); restore it: it names the stored events") from None

    def write(self, storage: Storage) -> None:
        """Replace the manifest in one step: a reader sees the old state or the new one."""
        storage.put_manifest(self.version, self.text().encode())

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps({"tables_version": TABLES_VERSION, **self.__dict__}, indent=1)

    def referenced(self) -> set[str]:
        """Return the files that count, relative to the root."""
        dated = (self.events, *self.tables.values())
        named = {file for dates in dated for files in dates.values() for file in files}
        return named | {file for file in (self.backlogs, self.losses) if file} | set(self.superseded)

    def following(self) -> Manifest:
        """Return the next manifest, which has the same content so far."""
        events = {date: list(files) for date, files in self.events.items()}
        tables = {table: {date: list(files) for date, files in dates.items()} for table, dates in self.tables.items()}
        return replace(
            self, version=self.version + 1, events=events, folded=dict(self.folded), tables=tables, superseded=[], forgetting=[]
        )

    @property
    def built(self) -> bool:
        """Whether the tables contain the events that the manifest names; not so after an upgrade."""
        return any(self.tables.values()) or not self.events

    def check_release(self, where: object) -> None:
        """Raise TablesUnusable where the tables are of an older release; `where` they are, for the error."""
        if not self.built:
            raise TablesUnusable(f"{where} has tables of an older release: run `celery-redis-plus spark aggregate` first")

    def check_built(self, where: object) -> None:
        """Raise TablesUnusable where there are no tables yet, or those of an older release; `where` they are, for the error."""
        self.check_release(where)
        if not self.folded:
            raise TablesUnusable(f"{where} has no tables yet: run `celery-redis-plus spark ingest` and then `aggregate`")


def _of_older_release(storage: Storage, tables_version: int, found: dict[str, Any]) -> Manifest:
    """Return the manifest of tables of an older version: it has their events, and no tables."""
    if tables_version >= OLDEST_OF_THESE_FIELDS:
        return replace(Manifest(**found), tables=Manifest().tables, backlogs="")
    manifest = Manifest(version=int(found.get("version", 0)))
    for date, directory in found.get("events", {}).items():
        manifest.events[date] = sorted(name for name in storage.names(directory) if name.endswith(".parquet"))
    absorbed = set(found.get("absorbed", ()))
    for batch in batches(storage):
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


def batches(storage: Storage) -> list[RowBatch]:
    """Return the whole incoming batches."""
    found = []
    for run, number, directory in storage.batch_folders():
        content = storage.once(f"{directory}/{COMMITTED}")
        # An aggregation may remove one meanwhile.
        if content is not None:
            found.append(RowBatch(run, number, content["rows"], content["files"], content.get("losses", [])))
    return found


def new_batches(root: str | Path | Storage, manifest: Manifest) -> list[RowBatch]:
    """Return the whole incoming batches that the tables do not contain yet."""
    return [batch for batch in batches(opened(root)) if batch.number > manifest.folded.get(batch.run, -1)]


def event_files(root: str | Path | Storage, manifest: Manifest) -> Dated:
    """Return the files of all events there are, also of those that the tables do not contain yet."""
    found = {date: list(files) for date, files in manifest.events.items()}
    for batch in new_batches(root, manifest):
        for date, files in batch.files.items():
            found.setdefault(date, []).extend(files)
    return found


def files(root: str | Path | Storage, table: str) -> list[str]:
    """Return the Parquet files of `table` (also `losses` and `checks`) as they are now; those at a URL are URLs.

    For readers without Spark: `duckdb.read_parquet(files(root, "messages"))`, `pyarrow.dataset.dataset(files(...))`. The files
    stay for a quarter of an hour at least.

    Raises:
        TablesUnusable: there is no such table in `root`; of losses: nothing was lost.
    """
    storage = opened(root)
    manifest = Manifest.read(storage)
    return [f"{storage}/{name}" for name in names(storage, manifest, event_files(storage, manifest), table)]


def names(storage: Storage, manifest: Manifest, events: Dated, table: str) -> list[str]:
    """Return the files of a table, relative to the root; errors as of `files`."""
    if table == "checks":
        # In Azure's store it is empty while it is written, and stays so where the job was killed.
        if not storage.size(CHECKS):
            raise TablesUnusable(f"{storage} has no table 'checks' yet: run `celery-redis-plus spark check`")
        return [CHECKS]
    if table == "losses":
        if not manifest.losses:
            raise TablesUnusable(f"{storage} has no table 'losses': nothing was lost before the last `aggregate`")
        return [manifest.losses]
    if table == "events":
        dated = [events]
    elif table in TABLES:
        dated = [manifest.tables[table], *([manifest.tables[UNFINISHED]] if table == "messages" else [])]
    else:
        raise TablesUnusable(f"there is no table {table!r}; tables: events, {', '.join(TABLES)}, losses, checks")
    found = [file for dates in dated for of_day in dates.values() for file in of_day]
    if not found:
        raise TablesUnusable(f"{storage} has no table {table!r} yet: run `celery-redis-plus spark ingest` and then `aggregate`")
    return sorted(found)
