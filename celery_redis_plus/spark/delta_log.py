"""Keeps a log of Delta Lake beside each table, for readers that know Delta tables and nothing of this package.

    ROOT/delta.json             the version of the tables, and the version of each log that belongs to it
    ROOT/TABLE/_delta_log/      what Delta Lake says a Delta table is

The manifest stays what counts: it changes all tables in one step, which logs of single tables cannot. A job replaces the
manifest, then brings each log to the same files in one commit, then `delta.json`. So a log is never ahead of the tables, and
each of its versions has exactly the files of a version of the tables. After a kill in between, the next job begins with this.

A commit counts only at the version that follows the one that was read, and only while its lease is held (`Storage.verify`): of
two processes that take each other for dead, the slower one writes nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyarrow import fs

from celery_redis_plus.errors import CeleryRedisPlusError, InvalidArgument, SparkUnavailable, TablesUnusable
from celery_redis_plus.installation import install_command
from celery_redis_plus.spark.folder import TablesFolder
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS, Layers
from celery_redis_plus.spark.losses import LOSS_COLUMNS
from celery_redis_plus.spark.manifest import TABLES, UNFINISHED, Manifest
from celery_redis_plus.spark.object_store import azure_account, s3_endpoint
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.schema import arrow
from celery_redis_plus.spark.storage import TABLES_LOCK, Storage

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

#: Its being there says that the tables have logs.
DELTA = "delta.json"
NO_LOGS: dict[str, Any] = {"version": -1, "logs": {}}
#: The tables that have logs.
SCHEMAS = {EVENTS: LAYOUTS[EVENTS].schema, **{table: LAYOUTS[table].schema for table in TABLES}, "losses": arrow(LOSS_COLUMNS)}
#: Delta's idempotent writers name themselves; the number is the version of the tables.
_APP = "celery-redis-plus"
#: The files that a log no longer names go after a quarter of an hour, so its old versions are of no use. A reader reads the last
#: checkpoint, and a file for each commit since.
CONFIGURATION = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 15 minutes",
    "delta.checkpointInterval": "10",
}
#: So often another program may write into a log in the moment of a commit.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Logged:
    """What a log names: its table, the log's version, and how many files and rows that has."""

    table: str
    version: int
    files: int
    rows: int


def switch_on(root: str | Path | Storage) -> list[Logged]:
    """Keep logs of the tables from now on; return what they name. No file is written anew: those elsewhere are copied.

    Killed at any moment, run it again, or any job.

    Args:
        root: the folder of tables, or their URL. It may be empty yet.

    Raises:
        InvalidArgument: Delta Lake cannot open a folder of this name.
        SparkUnavailable: the package `deltalake` is not installed.
        TablesUnusable: an aggregation or compaction runs there, or the tables are a copy.
    """
    _package()
    storage = opened(root)
    if isinstance(storage, TablesFolder) and "%" in str(storage.root.absolute()):
        # deltalake 1.6 reads it as a part of a URL twice, in which `%20` is a space.
        raise InvalidArgument(f"{storage} has a % in its path, which Delta Lake cannot open; allowed is one without")
    with storage.locked():
        manifest = Manifest.read(storage)
        layers = Layers(storage, manifest.following())
        if bring_home(layers):
            manifest = layers.manifest
            manifest.write(storage)
        was_on = is_on(storage)
        if not was_on:
            # Not before: a job that finds it brings the logs to the current version.
            storage.write_json(DELTA, NO_LOGS)
        try:
            follow(storage, manifest)
        except (CeleryRedisPlusError, OSError):
            if not was_on:
                # Each job would fail likewise.
                _remove(storage)
            raise
    return [Logged(table, log.version(), *_counts(log)) for table, log in tables(storage).items()]


def switch_off(root: str | Path | Storage) -> None:
    """Keep no logs any more, and remove those there are; errors as of `switch_on`."""
    storage = opened(root)
    with storage.locked():
        _remove(storage)


def mirror(source: Storage, copy: Storage, manifest: Manifest) -> None:
    """Let a copy of the tables have logs if its source has, and remove them if not. The caller keeps other copiers out.

    Raises:
        SparkUnavailable: the package `deltalake` is not installed.
        TablesUnusable: another program writes into a log.
    """
    if is_on(source):
        if not is_on(copy):
            copy.write_json(DELTA, NO_LOGS)
        follow(copy, manifest, lambda: None)
    elif copy.size(DELTA) is not None:
        _remove(copy)


def tables(root: str | Path | Storage) -> dict[str, DeltaTable]:
    """Return the Delta tables, at versions that belong together; none where there are no logs, or no tables yet.

    Raises:
        SparkUnavailable: the package `deltalake` is not installed.
        ObjectStoreFailed: the store refuses, or cannot be reached.
    """
    storage = opened(root)
    logs = (storage.current(DELTA) or NO_LOGS)["logs"]
    return {table: _opened(storage, table, version) for table, version in logs.items()}


def is_on(storage: Storage) -> bool:
    """Return whether the tables have logs, which the package `deltalake` writes.

    Raises:
        SparkUnavailable: they have, and it is not installed.
    """
    if storage.size(DELTA) is None:
        return False
    _package()
    return True


def bring_home(layers: Layers) -> int:
    """Let the files of a version be where the logs can name them, in the folder of their table; return how many were not.

    Those of `events` come from the folders of micro-batches. Readers other than Spark do not follow a log out of its folder.
    """
    moved = 0
    for table, home in {EVENTS: EVENTS, UNFINISHED: "messages"}.items():
        for date in list(layers.dated(table)):
            away = [file for file in layers.files(table, date) if not file.startswith(f"{home}/")]
            copies = [layers.new_file(table, date) for _ in away]
            for file, copy in zip(away, copies, strict=True):
                layers.storage.copy(file, copy)
            layers.drop(table, date, away)
            layers.take(table, date, copies)
            layers.manifest.superseded += away
            moved += len(away)
    return moved


def follow(storage: Storage, manifest: Manifest, verify: Callable[[], None] | None = None) -> None:
    """Bring the logs to a version of the tables, if there are logs.

    Args:
        storage: the place of the tables.
        manifest: the current version.
        verify: makes sure that nobody else brings the logs to another version; None where the caller holds `TABLES_LOCK`.

    Raises:
        SparkUnavailable: the package `deltalake` is not installed.
        TablesUnusable: another process has taken over, or another program writes into a log.
    """
    if not is_on(storage):
        return
    # One whose writer was killed may be empty.
    known = storage.current(DELTA) or NO_LOGS
    if not manifest.version or known["version"] == manifest.version:
        return
    named = _named(manifest)
    if any(not file.startswith(f"{table}/") for table, of_table in named.items() for file in of_table):
        # A release that knows no logs has written it: they follow from the next version on.
        return
    verify = verify or partial(storage.verify, TABLES_LOCK)
    logs = {table: _bring(storage, table, of_table, manifest, verify) for table, of_table in named.items()}
    storage.write_json(DELTA, {"version": manifest.version, "logs": logs})


def differences(storage: Storage, manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Yield the tables whose logs name other files than the current version, and how many. The caller holds `TABLES_LOCK`.

    Raises:
        SparkUnavailable: the package `deltalake` is not installed.
    """
    if not manifest.version or not is_on(storage):
        return
    from deltalake.exceptions import TableNotFoundError

    for table, named in _named(manifest).items():
        try:
            present = {f"{table}/{path}" for path in _paths(_opened(storage, table))}
        except (TableNotFoundError, TablesUnusable):
            yield table, max(1, len(named))
        else:
            if other := present.symmetric_difference(named):
                yield table, len(other)


def _named(manifest: Manifest) -> dict[str, set[str]]:
    """Return table -> files, as the logs name them."""
    dated = {EVENTS: [manifest.events], **{table: [manifest.tables[table]] for table in TABLES}}
    dated["messages"].append(manifest.tables[UNFINISHED])
    named = {table: {file for days in of_table for files in days.values() for file in files} for table, of_table in dated.items()}
    return named | {"losses": {manifest.losses} if manifest.losses else set()}


def _bring(
    storage: Storage, table: str, named: set[str], manifest: Manifest, verify: Callable[[], None]
) -> int:  # fmt: skip
    """Let a log name these files, and no others; return its version."""
    from deltalake.exceptions import CommitFailedError, TableNotFoundError

    failed = ""
    for _ in range(_ATTEMPTS):
        try:
            log = _opened(storage, table)
            # Who takes the lease after this finds what is committed here, or has committed first what this conflicts with.
            verify()
            with _told(storage, table):
                version = _commit(storage, log, table, named, manifest)
            if version is not None:
                _sync(storage, table)
                return version
        except TableNotFoundError:
            _create(storage, table)
        except CommitFailedError as error:
            failed = _line(error)
    raise TablesUnusable(f"{_uri(storage, table)}/_delta_log: {failed}; does another program write there? Only this one may")


def _commit(storage: Storage, log: DeltaTable, table: str, named: set[str], manifest: Manifest) -> int | None:
    """Commit what a log lacks, or has too much; return its version then, None where there is more to commit."""
    from deltalake import Schema

    known = {field.name for field in log.schema().fields}
    # Those that a later release has written stay.
    if columns := [field for field in Schema.from_arrow(SCHEMAS[table]).fields if field.name not in known]:
        log.alter.add_columns(columns, commit_properties=_properties(manifest))
        return None
    version = int(log.version())
    actions = _actions(storage, table, named, {f"{table}/{path}" for path in _paths(log)})
    if actions:
        log.create_write_transaction(actions, "append", log.schema(), commit_properties=_properties(manifest))
        version += 1
    return version


def _actions(storage: Storage, table: str, named: set[str], present: set[str]) -> list[AddAction | RemoveAction]:
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = round(time.time() * 1000)
    added: list[AddAction | RemoveAction] = [
        AddAction(
            path=file.removeprefix(f"{table}/"),
            size=storage.size(file) or 0,
            partition_values={},
            modification_time=now_ms,
            data_change=True,
            stats=_stats(storage, file),
        )
        for file in sorted(named.difference(present))
    ]
    gone = sorted(present.difference(named))
    return added + [RemoveAction(file.removeprefix(f"{table}/"), data_change=True, deletion_timestamp=now_ms) for file in gone]


def _sync(storage: Storage, table: str) -> None:
    """Put a log on the disk, which `deltalake` leaves to the kernel: an empty file of a log makes its table unreadable."""
    if isinstance(storage.filesystem, fs.LocalFileSystem):
        storage.sync(storage.names(f"{table}/_delta_log"))


def _remove(storage: Storage) -> None:
    storage.remove([DELTA])
    for table in SCHEMAS:
        storage.clear(f"{table}/_delta_log")


def _create(storage: Storage, table: str) -> None:
    from deltalake import Schema
    from deltalake.transaction import create_table_with_add_actions

    schema = Schema.from_arrow(SCHEMAS[table])
    where, options = _uri(storage, table), storage_options(storage)
    with _told(storage, table):
        # Where it is there by now, that is what was wanted.
        create_table_with_add_actions(
            where, schema, [], "ignore", name=table, configuration=CONFIGURATION, storage_options=options
        )


def _properties(manifest: Manifest) -> CommitProperties:
    """Return what says which version of the tables a commit has, and which micro-batches are in it."""
    from deltalake import CommitProperties, Transaction

    transactions = [Transaction(_APP, manifest.version), *(Transaction(run, number) for run, number in manifest.folded.items())]
    return CommitProperties(max_commit_retries=0, app_transactions=transactions)


def _stats(storage: Storage, file: str) -> str:
    """Return what Delta calls statistics. They stay in the log after `spark forget`: they hold nothing of a message."""
    metadata = storage.metadata(file)
    place = metadata.schema.to_arrow_schema().get_field_index("date")
    groups = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups) if place >= 0]
    dated = {}
    if groups and all(group is not None and group.has_min_max for group in groups):
        first, last = min(group.min for group in groups).isoformat(), max(group.max for group in groups).isoformat()
        dated = {"minValues": {"date": first}, "maxValues": {"date": last}, "nullCount": {"date": 0}}
    return json.dumps({"numRecords": metadata.num_rows, **dated})


def _paths(log: DeltaTable) -> list[str]:
    paths: list[str] = log.get_add_actions(flatten=True).column("path").to_pylist()
    return paths


def _counts(log: DeltaTable) -> tuple[int, int]:
    rows = log.get_add_actions(flatten=True).column("num_records").to_pylist()
    return len(rows), sum(rows)


def _opened(storage: Storage, table: str, version: int | None = None) -> DeltaTable:
    _package()
    from deltalake import DeltaTable

    with _told(storage, table):
        return DeltaTable(_uri(storage, table), version, storage_options(storage))


def _uri(storage: Storage, table: str) -> str:
    return f"{storage}/{table}"


def storage_options(root: str | Path | Storage) -> dict[str, str]:
    """Return what a reader of Delta tables has to be told to find the same store; it finds the credentials by itself."""
    storage = opened(root)
    if isinstance(storage.filesystem, fs.S3FileSystem):
        found, endpoint, name = {"AWS_REGION": storage.filesystem.region}, s3_endpoint(), "AWS_ENDPOINT_URL"
    elif isinstance(storage.filesystem, fs.AzureFileSystem):
        found, name = {"AZURE_STORAGE_ACCOUNT_NAME": azure_account(urlsplit(storage.where).netloc)}, "AZURE_STORAGE_ENDPOINT"
        endpoint = os.environ.get(name, "")
    else:
        return {}
    return found | ({name: endpoint, "ALLOW_HTTP": str(endpoint.startswith("http:")).lower()} if endpoint else {})


@contextmanager
def _told(storage: Storage, table: str) -> Iterator[None]:
    """Tell what is wrong in one line, but for what a caller goes on after."""
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

    try:
        with storage.told():
            yield
    except (CommitFailedError, TableNotFoundError):
        raise
    except DeltaError as error:
        remedy = "`spark delta --off`, then `spark delta`, makes it anew"
        raise TablesUnusable(f"{_uri(storage, table)}/_delta_log: {_line(error)}; {remedy}") from None


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _package() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise SparkUnavailable(
            f"deltalake is not installed, and the tables have logs of Delta Lake: {install_command('lake')}"
        ) from None
