"""A place that has tables, by names relative to it: a folder of this machine, or a URL of an object store (`roots.opened`).

Everything that reads or writes tables does so by this interface, so it works in both. Where they differ: how one writer at a time
works there, and how a new state of all tables appears in one step.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyarrow import dataset, fs, parquet

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa

#: What one process at a time does in a place: the name of its lock, and words for it.
TABLES_LOCK, INGEST_LOCK, RUN_LOCK = (".lock", "aggregation or compaction"), (".ingest.lock", "ingest"), (".run.lock", "service")
PUBLICATION_LOCK = (".publication.lock", "publication")
#: The file of a micro-batch that is whole.
COMMITTED = "_committed.json"
_PIECE = 8 * 1024 * 1024
_PARQUET = dataset.ParquetFileFormat()
#: Files whose numbers of rows are remembered, and whose footers, which an aggregation asks three times: one may have 1 MB.
ROW_COUNTS_KEPT, FOOTERS_KEPT = 10_000, 64


@dataclass(frozen=True)
class Head:
    """The current manifest of a place, as text.

    Attributes:
        text: JSON.
        name: of its file.
        published: whether it is that of a copy, which `spark publish` makes.
    """

    text: str
    name: str
    published: bool = False


def published(storage: Storage) -> str:
    """Return why nothing is written into a copy."""
    return f"{storage} has the copy of a folder, which `spark publish` makes; name the folder, or another place for other tables"


class Storage(ABC):
    """A place that has tables.

    Attributes:
        where: the folder or the URL, as errors and readers name it.
        filesystem, path: as pyarrow names it.
    """

    #: Whether a micro-batch itself says where it ends; else the checkpoint does.
    has_offsets = False

    def __init__(self, where: str, filesystem: fs.FileSystem, path: str) -> None:
        self.where = where
        self.filesystem = filesystem
        self.path = path
        # A file is written once; an aggregation asks for the rows of many, and a service runs thousands of aggregations.
        self.row_count = lru_cache(maxsize=ROW_COUNTS_KEPT)(self._row_count)
        # Its first read reads the footer, and keeps it.
        self._fragment = lru_cache(maxsize=FOOTERS_KEPT)(self._new_fragment)

    def __str__(self) -> str:
        """Return the folder or the URL."""
        return self.where

    # ---- files

    def place(self, name: str) -> str:
        """Return a file's path for pyarrow."""
        return f"{self.path}/{name}"

    def names(self, under: str = "") -> dict[str, tuple[int, datetime]]:
        """Return name -> size and time of the files under a folder."""
        return {name: (info.size, info.mtime) for name, info in self._infos(under, recursive=True) if info.is_file}

    def folders(self, under: str) -> list[str]:
        """Return the names of the folders in a folder, without its own."""
        return [info.base_name for _, info in self._infos(under, recursive=False) if not info.is_file]

    def is_empty(self) -> bool:
        """Return whether nothing is in the place, or it is not there."""
        # Not every store of Google's kind lists folders: where there are none, all files are asked for.
        return not (self._infos("", recursive=False) or self._infos("", recursive=True))

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has; None where it is not there."""
        with self.told():
            info = self.filesystem.get_file_info(self.place(name))
        return int(info.size) if info.is_file else None

    def read(self, name: str) -> bytes | None:
        """Return what a file has; None where it is not there."""
        try:
            with self.told(), self.filesystem.open_input_stream(self.place(name)) as stream:
                content: bytes = stream.read()
        except FileNotFoundError:
            return None
        return content

    def once(self, name: str) -> Any:
        """Return what a file has, as JSON, that is written once; None where it is not there."""
        return self.current(name)

    def current(self, name: str) -> Any:
        """Return what a file has now, as JSON; None where it is not there."""
        content = self.read(name)
        return json.loads(content) if content else None

    def write_json(self, name: str, content: Any) -> None:
        """Write a file whole or not at all, as JSON."""
        self.write(name, json.dumps(content, indent=1).encode())

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all, also where the machine stops."""

    def upload(self, path: Path, name: str) -> None:
        """Copy a file of this machine. One that was not copied whole has another size."""
        with path.open("rb") as source, self.told(), self.filesystem.open_output_stream(self._ready(name)) as stream:
            while piece := source.read(_PIECE):
                stream.write(piece)

    def copy(self, name: str, target: str) -> None:
        """Copy a file within the place; in an object store, its server does it."""
        with self.told():
            self.filesystem.copy_file(self.place(name), self._ready(target))
        self.sync([target])

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are not there are gone already."""

    @abstractmethod
    def clear(self, under: str) -> None:
        """Remove a folder with all that it has."""

    @abstractmethod
    def prune(self, under: str) -> None:
        """Remove the empty folders under a folder, and itself."""

    def sync(self, names: Iterable[str]) -> None:  # noqa: B027 - nothing is the default
        """Put files on the disk; in an object store they are safe once they are there."""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell errors of the place so that they name it."""
        yield

    # ---- Parquet

    def _new_fragment(self, name: str) -> dataset.ParquetFileFragment:
        """Return a Parquet file."""
        return _PARQUET.make_fragment(self.place(name), self.filesystem)

    def metadata(self, name: str) -> parquet.FileMetaData:
        """Return the footer of a Parquet file."""
        return self._fragment(name).metadata

    def _row_count(self, name: str) -> int:
        """Return how many rows a Parquet file has, from its footer."""
        rows: int = self.metadata(name).num_rows
        return rows

    def writer(self, name: str, schema: pa.Schema) -> parquet.ParquetWriter:
        """Return what writes a Parquet file."""
        return parquet.ParquetWriter(self._ready(name), schema, compression="zstd", filesystem=self.filesystem)

    def write_table(self, name: str, rows: pa.Table) -> None:
        """Write a Parquet file."""
        with self.writer(name, rows.schema) as writer:
            writer.write_table(rows)

    def table(self, name: str) -> pa.Table:
        """Return all rows of a Parquet file."""
        return parquet.read_table(self.place(name), filesystem=self.filesystem, partitioning=None)

    def dataset(self, names: Sequence[str], schema: pa.Schema | None = None) -> dataset.Dataset:
        """Return Parquet files as one data set; a column of `schema` that a file lacks is null."""
        fragments = [self._fragment(name) for name in names]
        return dataset.FileSystemDataset(fragments, schema or fragments[0].physical_schema, _PARQUET, self.filesystem)

    # ---- one writer, and one step

    @abstractmethod
    def identity(self) -> str:
        """Return what names these tables, also for the broker's reader of events."""

    @abstractmethod
    def locked(self, lock: tuple[str, str] = TABLES_LOCK) -> AbstractContextManager[None]:
        """Keep others that do the same work out.

        Raises:
            TablesUnusable: another one is at work.
        """

    @abstractmethod
    def verify(self, lock: tuple[str, str]) -> None:
        """Make sure that the work is still this process' own, so what it has written before this call stays.

        Raises:
            TablesUnusable: another process has taken over, since this one was silent for long.
        """

    @abstractmethod
    def head(self) -> Head | None:
        """Return the current manifest; None where there is none."""

    @abstractmethod
    def put_manifest(self, version: int, content: bytes) -> None:
        """Let a manifest be the current one, in one step. The caller holds `TABLES_LOCK`.

        Raises:
            TablesUnusable: as `verify`.
        """

    def version_folder(self, version: int) -> str:
        """Return the folder, within a table's, of the files of a version that is being made. The caller holds `TABLES_LOCK`."""
        return f"v{version:08}"

    @abstractmethod
    def batch_folder(self, run: str, number: int) -> str:
        """Return where this ingest puts a micro-batch."""

    @abstractmethod
    def batch_folders(self) -> list[tuple[str, int, str]]:
        """Return run, number and folder of the micro-batches that are whole, in their order."""

    # ---- for the two kinds

    def _infos(self, under: str, *, recursive: bool) -> list[tuple[str, fs.FileInfo]]:
        base = self.place(under) if under else self.path
        selector = fs.FileSelector(base, allow_not_found=True, recursive=recursive)
        with self.told():
            found = self.filesystem.get_file_info(selector)
        return [(info.path[len(self.path) + 1 :], info) for info in found]

    def _ready(self, name: str) -> str:
        """Return the path of a file that can be written."""
        return self.place(name)
