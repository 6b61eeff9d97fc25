"""Tables at a URL: `s3://`, `gs://` or `abfs://`, by pyarrow's filesystems.

Credentials are those that these find by themselves (environment, profile, role of the machine). A URL with a secret is refused.

Objects are written once, under names that are never used again, but for `status.json`, `broker.json`, `delta.json` and
`checks.parquet`. A version of the tables is one object, a micro-batch counts by one object, and both carry the number of the
lease under which they were written (`lease.py`):

    versions/N.LEASE.json                          a manifest; the current one is the last of the last holder
    incoming/RUN/N.LEASE.RANDOM/_committed.json    a micro-batch, with the offset at which it ends
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from celery_redis_plus.errors import InvalidArgument, ObjectStoreFailed, TablesUnusable
from celery_redis_plus.spark.lease import Lease, Term, declared, terms
from celery_redis_plus.spark.storage import COMMITTED, INGEST_LOCK, TABLES_LOCK, Head, Storage, published

#: Objects that are kept in memory, of those that are written once.
MOST_SEEN = 300
#: Seconds for which an object that is replaced may be empty; one whose writer died then stays so.
REPLACED_S = 2.0
#: What the environment may say of Azure's store, under the names that Delta Lake's and Polars' readers know.
AZURE = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ENDPOINT")
SCHEMES = ("s3", "gs", "abfs", "abfss")
_VERSION = re.compile(r"versions/(\d+)\.(\d+)\.json")
_BATCH = re.compile(rf"incoming/([^/]+)/(\d+)\.(\d+)\.\w+/{COMMITTED}")


def s3_endpoint() -> str:
    """Return the address of S3's interface that the environment names; '' for Amazon's own."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _s3(bucket: str) -> fs.S3FileSystem:
    # pyarrow looks neither for an endpoint nor for the region of the bucket. A small object is one request.
    options: dict[str, Any] = {"allow_delayed_open": True}
    if endpoint := s3_endpoint():
        options["endpoint_override"] = endpoint
    elif not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        options["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(**options)


def azure_account(place: str) -> str:
    """Return the account of `CONTAINER@ACCOUNT.dfs.core.windows.net`, or the one that the environment names."""
    return place.rpartition("@")[2].partition(".")[0] if "@" in place else os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")


def _azure(place: str) -> fs.AzureFileSystem:
    # pyarrow itself looks for neither of these, only for what Azure's own libraries find (`AZURE_CLIENT_ID`, a role, a login).
    options = {"account_name": azure_account(place)}
    for option, name in (("account_key", "AZURE_STORAGE_ACCOUNT_KEY"), ("sas_token", "AZURE_STORAGE_SAS_TOKEN")):
        if value := os.environ.get(name):
            options[option] = value
    if suffix := place.partition(".dfs.")[2]:
        options |= {f"{kind}_storage_authority": f".{kind}.{suffix}" for kind in ("blob", "dfs")}
    if endpoint := os.environ.get("AZURE_STORAGE_ENDPOINT"):
        parts = urlsplit(endpoint)
        options |= {f"{kind}_storage_authority": parts.netloc for kind in ("blob", "dfs")}
        options |= {f"{kind}_storage_scheme": parts.scheme for kind in ("blob", "dfs")}
    return fs.AzureFileSystem(**options)


class ObjectStore(Storage):
    """The place that a URL names.

    Attributes:
        filesystem, path: as pyarrow names it.
        leases: those that it holds, by the name of the lock.

    Raises:
        InvalidArgument: the URL holds a secret, or names no place that pyarrow knows.
        ObjectStoreFailed: the store cannot be reached.
    """

    has_offsets = True

    def __init__(self, url: str) -> None:
        url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.password or parts.query:
            raise InvalidArgument(
                f"a URL of {parts.scheme}:// with a secret or a query is not allowed; give credentials by environment"
            )
        if parts.scheme not in SCHEMES or not parts.netloc:
            raise InvalidArgument(f"{url!r} is not allowed; allowed: a URL of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
        self.where = url
        super().__init__(url, *self._opened(parts.scheme, f"{parts.netloc}{parts.path}"))
        self.leases: dict[str, Lease] = {}
        #: What objects have that are written once.
        self._seen: dict[str, Any] = {}

    def _opened(self, scheme: str, path: str) -> tuple[fs.FileSystem, str]:
        with self.told():
            if scheme == "s3":
                return _s3(path.partition("/")[0]), path
            if scheme == "gs" and (emulator := os.environ.get("STORAGE_EMULATOR_HOST")):
                parts = urlsplit(emulator if "//" in emulator else f"http://{emulator}")
                return fs.GcsFileSystem(anonymous=True, endpoint_override=parts.netloc, scheme=parts.scheme), path
            if scheme != "gs" and any(os.environ.get(name) for name in AZURE):
                place, slash, under = path.partition("/")
                return _azure(place), f"{place.partition('@')[0]}{slash}{under}"
            found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(self.where)
            return found

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell the store's errors in one line, with the URL.

        Raises:
            ObjectStoreFailed: the store refuses, or cannot be reached.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise ObjectStoreFailed(f"{self.where}: {str(error).partition(chr(10))[0]}") from None

    # ---- files

    def read(self, name: str) -> bytes | None:
        """Return what an object has; None where it is not there."""
        try:
            return super().read(name)
        except ObjectStoreFailed:
            # pyarrow asks for the size first: removed after that, the object is an error.
            if self.size(name) is None:
                return None
            raise

    def current(self, name: str) -> Any:
        """Return what an object has now, as JSON; None where it is not there, or was never whole."""
        until = time.monotonic() + REPLACED_S
        while (content := self.read(name)) == b"" and time.monotonic() < until:
            time.sleep(REPLACED_S / 20)
        return json.loads(content) if content else None

    def write(self, name: str, content: bytes) -> None:
        """Write an object. Google's and Amazon's stores show it when it is whole, Azure's shows it empty before."""
        with self.told(), self.filesystem.open_output_stream(self.place(name)) as stream:
            stream.write(content)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there are gone already."""
        for name in names:
            try:
                with self.told():
                    self.filesystem.delete_file(self.place(name))
            except FileNotFoundError:
                continue

    def clear(self, under: str) -> None:
        """Remove all objects under a name."""
        # Google's filesystem tells a folder that is not there as another error than the others do.
        if self._infos(under, recursive=False):
            with suppress(FileNotFoundError), self.told():
                self.filesystem.delete_dir(self.place(under))

    def prune(self, under: str) -> None:
        """Remove what pyarrow leaves of a folder, where it has no objects any more."""
        if not self.names(under):
            self.clear(under)

    # ---- one writer, and one step

    def identity(self) -> str:
        """Return what names these tables: one URL has one name."""
        return hashlib.sha256(self.where.encode()).hexdigest()[:16]

    @contextmanager
    def locked(self, lock: tuple[str, str] = TABLES_LOCK) -> Iterator[None]:
        """Keep others that do the same work out. A killed process is waited for, `lease.SILENT_S` seconds.

        Raises:
            TablesUnusable: another one is at work; or the tables are a copy, which `spark publish` makes.
        """
        work, words = lock
        if self.size("folder.json") is not None:
            raise TablesUnusable(published(self))
        bases = {TABLES_LOCK: self._current_version, INGEST_LOCK: self.last_batch}
        lease = Lease(self, work.strip("."), words)
        try:
            lease.acquire(bases.get(lock, lambda _earlier: ""))
            self.leases[work] = lease
            yield
        finally:
            self.leases.pop(work, None)
            lease.release()

    def verify(self, lock: tuple[str, str]) -> None:
        """Make sure that what was written under a lease before this call stays.

        Raises:
            TablesUnusable: another process has taken over.
        """
        self.leases[lock[0]].verify()

    def head(self) -> Head | None:
        """Return the current manifest; None where there is none."""
        # First what is written, then who writes: a version's lease is known then.
        versions = self._versions()
        name = self._head_of(versions, terms(self, TABLES_LOCK[0].strip(".")))
        if name:
            return Head((self.read(name) or b"").decode(), f"{self.where}/{name}")
        content = None if versions else self.read("manifest.json")
        return None if content is None else Head(content.decode(), f"{self.where}/manifest.json", published=True)

    def put_manifest(self, version: int, content: bytes) -> None:
        """Let a manifest be the current one: one object."""
        self.write(f"versions/{version:08}.{self.leases[TABLES_LOCK[0]].number:08}.json", content)
        self.verify(TABLES_LOCK)

    def version_folder(self, version: int) -> str:
        """Return a folder that no other holder uses."""
        return f"v{version:08}.{self.leases[TABLES_LOCK[0]].number:08}"

    def batch_folder(self, run: str, number: int) -> str:
        """Return a new place for an attempt to store a micro-batch: what an earlier one writes late counts for nothing."""
        return f"incoming/{run}/{number:08}.{self.leases[INGEST_LOCK[0]].number:08}.{uuid.uuid4().hex}"

    def batch_folders(self) -> list[tuple[str, int, str]]:
        """Return run, number and folder of the micro-batches that are whole, in their order.

        Those of a holder that has just been replaced are left out until the next one has noted which of them count.
        """
        markers = self._markers()
        latest, unsettled = declared(terms(self, INGEST_LOCK[0].strip(".")))
        return [] if unsettled else self._counting(markers, latest)

    def once(self, name: str) -> Any:
        """Return what an object has, as JSON, that is written once; None where it is not there."""
        if name not in self._seen:
            content = self.read(name)
            if not content:
                return None
            self._seen[name] = json.loads(content)
            if len(self._seen) > MOST_SEEN:
                del self._seen[next(iter(self._seen))]
        return self._seen[name]

    # ---- what counts

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Return manifests -> (lease, version)."""
        found = {}
        for name, (size, _) in self.names("versions").items():
            match = _VERSION.fullmatch(name)
            if match and size:
                found[name] = (int(match[2]), int(match[1]))
        return found

    def _head_of(self, versions: dict[str, tuple[int, int]], held: list[Term]) -> str:
        latest, _ = declared(held)
        if latest is None:
            return ""
        own = [name for name, (lease, _) in versions.items() if lease == latest.number]
        return max(own, key=lambda name: versions[name], default=str(latest.base))

    def _current_version(self, earlier: list[Term]) -> str:
        return self._head_of(self._versions(), earlier)

    def _markers(self) -> list[tuple[str, int, int, str]]:
        """Return run, number, lease and folder of each micro-batch that was ever whole."""
        found = []
        for name, (size, _) in self.names("incoming").items():
            match = _BATCH.fullmatch(name)
            if match and size:
                found.append((match[1], int(match[2]), int(match[3]), name.rpartition("/")[0]))
        return found

    @staticmethod
    def _counting(markers: list[tuple[str, int, int, str]], latest: Term | None) -> list[tuple[str, int, str]]:
        if latest is None:
            return []
        chosen: dict[tuple[str, int], tuple[int, str]] = {}
        for run, number, lease, folder in markers:
            counts = lease == latest.number or (lease < latest.number and number <= latest.base)
            if counts and chosen.get((run, number), (0, ""))[0] < lease:
                chosen[run, number] = (lease, folder)
        return [(run, number, folder) for (run, number), (_, folder) in sorted(chosen.items())]

    def last_batch(self, earlier: list[Term]) -> int:
        """Return the number of the last micro-batch that counts, of earlier holders; -1 is none."""
        latest, _ = declared(earlier)
        found = [number for _, number, _ in self._counting(self._markers(), latest)]
        return max([-1 if latest is None else latest.base, *found])
