"""A published folder of tables at a URL: `s3://`, `gs://`, `abfs://` or `file://`, by pyarrow's filesystems.

Credentials are those that these find by themselves (environment, profile, role of the machine). A URL with a secret is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyarrow import fs

from celery_redis_plus.errors import InvalidArgument, TablesUnusable
from celery_redis_plus.spark.manifest import Manifest

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

SCHEMES = ("s3", "gs", "abfs", "abfss", "file")
_PIECE = 8 * 1024 * 1024


class ObjectStore:
    """The place that a URL names.

    Attributes:
        url: the URL.
        filesystem, path: as pyarrow names it.

    Raises:
        InvalidArgument: the URL holds a secret, or names no place that pyarrow knows.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.password or parts.query:
            raise InvalidArgument(
                f"a URL of {parts.scheme}:// with a secret or a query is not allowed; give credentials by environment"
            )
        if parts.scheme not in SCHEMES or not (parts.netloc or parts.path):
            raise InvalidArgument(f"{url!r} is not allowed; allowed: a URL of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
        self.filesystem, self.path = self._opened(parts.scheme, f"{parts.netloc}{parts.path}")

    def _opened(self, scheme: str, path: str) -> tuple[fs.FileSystem, str]:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        with self.told():
            if scheme == "s3" and endpoint:
                # pyarrow does not look for it.
                return fs.S3FileSystem(endpoint_override=endpoint), path
            found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(self.url)
            return found

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell the store's errors in one line, with the URL.

        Raises:
            TablesUnusable: the store refuses, or cannot be reached.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise TablesUnusable(f"{self.url}: {str(error).partition(chr(10))[0]}") from None

    def place(self, name: str) -> str:
        """Return a file's path for pyarrow."""
        return f"{self.path}/{name}"

    def names(self, under: str = "") -> dict[str, tuple[int, datetime]]:
        """Return name -> size and time of the files under a folder."""
        selector = fs.FileSelector(self.place(under) if under else self.path, allow_not_found=True, recursive=True)
        with self.told():
            found = [info for info in self.filesystem.get_file_info(selector) if info.is_file]
        return {info.path[len(self.path) + 1 :]: (info.size, info.mtime) for info in found}

    def read(self, name: str) -> bytes | None:
        """Return what a file has; None where it is not there."""
        try:
            with self.told(), self.filesystem.open_input_stream(self.place(name)) as stream:
                content: bytes = stream.read()
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all: an object appears when it is closed, a file of this machine when it is moved."""
        with self.told():
            target = self._ready(name)
            temporary = f"{target}.{os.getpid()}" if self._is_local else target
            with self.filesystem.open_output_stream(temporary) as stream:
                stream.write(content)
            if self._is_local:
                self.filesystem.move(temporary, target)

    def upload(self, path: Path, name: str) -> None:
        """Copy a file of this machine. One that was not copied whole has another size."""
        with path.open("rb") as source, self.told(), self.filesystem.open_output_stream(self._ready(name)) as stream:
            while piece := source.read(_PIECE):
                stream.write(piece)

    def delete(self, name: str) -> None:
        """Remove a file."""
        with self.told():
            self.filesystem.delete_file(self.place(name))

    def manifest(self) -> Manifest:
        """Return the manifest of the tables that are published there.

        Raises:
            TablesUnusable: there are none, or they are of another release.
        """
        content = self.read("manifest.json")
        if content is None:
            raise TablesUnusable(f"{self.url} has no tables: run `celery-redis-plus spark publish`")

        def older(_found: dict[str, Any]) -> Manifest:
            raise TablesUnusable(f"{self.url} has tables of an older release: run `celery-redis-plus spark publish` of this one")

        return Manifest.parse(content.decode(), f"{self.url}/manifest.json", older)

    def folder(self) -> str:
        """Return the id of the folder that was published there; '' where none was."""
        content = self.read("folder.json")
        return "" if content is None else str(json.loads(content)["id"])

    @property
    def _is_local(self) -> bool:
        return bool(self.filesystem.type_name == "local")

    def _ready(self, name: str) -> str:
        """Return the path of a file that can be written. A store has no folders."""
        target = self.place(name)
        if self._is_local:
            self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        return target
