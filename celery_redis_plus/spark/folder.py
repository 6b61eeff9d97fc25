"""A folder of tables on a disk of this machine, or on one that all nodes of a cluster see."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow import fs

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark.storage import COMMITTED, PUBLICATION_LOCK, TABLES_LOCK, Head, Storage, published


class TablesFolder(Storage):
    """A folder: `flock` keeps writers apart, and a rename makes a new manifest the current one.

    Attributes:
        root: its path, absolute: Java does not follow `chdir`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        super().__init__(str(self.root), fs.LocalFileSystem(), self.root.as_posix())

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all, also where the machine stops."""
        write_file(self.root / name, content)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are not there are gone already."""
        for name in names:
            path = self.root / name
            path.unlink(missing_ok=True)
            # Spark writes one beside each file.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def clear(self, under: str) -> None:
        """Remove a folder with all that it has."""
        shutil.rmtree(self.root / under, ignore_errors=True)

    def prune(self, under: str) -> None:
        """Remove the empty folders under a folder, and itself."""
        for folder, _, _ in os.walk(self.root / under, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()

    def sync(self, names: Iterable[str]) -> None:
        """Put files on the disk."""
        for name in names:
            descriptor = os.open(self.root / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def identity(self) -> str:
        """Return what names this folder, also after a move; made when first asked for."""
        if self.read("folder.json") is None:
            self.write_json("folder.json", {"id": uuid.uuid4().hex[:16]})
        identity: str = json.loads(self.read("folder.json") or b"{}")["id"]
        return identity

    @contextmanager
    def locked(self, lock: tuple[str, str] = TABLES_LOCK) -> Iterator[None]:
        """Keep others that do the same work out; a killed process leaves no lock behind.

        Raises:
            TablesUnusable: another one is at work.
        """
        name, work = lock
        if lock != PUBLICATION_LOCK and self._is_copy():
            raise TablesUnusable(published(self))
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / name, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TablesUnusable(f"another {work} runs in {self.root}; wait until it is done") from None
            yield
        finally:
            os.close(descriptor)

    def verify(self, lock: tuple[str, str]) -> None:
        """Do nothing: a lock ends with its process only."""

    def head(self) -> Head | None:
        """Return the current manifest; None where there is none.

        Raises:
            TablesUnusable: it is missing, and there are events that it named.
        """
        content = self.read("manifest.json")
        if content is None and any((self.root / "events").glob("v*/*")):
            # The first aggregation may have begun in between.
            content = self.read("manifest.json")
            if content is None:
                path = self.root / "manifest.json"
                raise TablesUnusable(f"{path} is missing; restore it: it names the stored events, which no other file does")
        return None if content is None else Head(content.decode(), f"{self.root}/manifest.json", self._is_copy())

    def put_manifest(self, version: int, content: bytes) -> None:
        """Let a manifest be the current one: a reader sees the old state or the new one."""
        self.write(f"versions/{version:08}.json", content)
        self.write("manifest.json", content)

    def batch_folder(self, run: str, number: int) -> str:
        """Return where a micro-batch is, whichever ingest stores it."""
        return f"incoming/{run}/{number:08}"

    def batch_folders(self) -> list[tuple[str, int, str]]:
        """Return run, number and folder of the micro-batches that are whole, in their order."""
        found = sorted((self.root / "incoming").glob(f"*/*/{COMMITTED}"))
        return [(path.parts[-3], int(path.parts[-2]), path.parent.relative_to(self.root).as_posix()) for path in found]

    def _is_copy(self) -> bool:
        return bool(json.loads(self.read("folder.json") or b"{}").get("published"))

    def _ready(self, name: str) -> str:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        return self.place(name)


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also where the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
