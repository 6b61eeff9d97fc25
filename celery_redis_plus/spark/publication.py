"""Publishes a folder of tables at a URL: readers there see one version of all tables, whole.

The folder itself stays on this machine: its locks, and the one step in which several tables change, need a filesystem. A
publication copies the files that a version names, then replaces one manifest. It may be killed at any moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark.leftovers import KEPT_S
from celery_redis_plus.spark.manifest import (
    CHECKS,
    PUBLICATION_LOCK,
    TABLES_VERSION,
    Manifest,
    folder,
    folder_id,
    locked,
)
from celery_redis_plus.spark.object_store import ObjectStore

#: So often an aggregation may replace a version while it is copied.
ATTEMPTS = 5


@dataclass(frozen=True)
class Published:
    """What a publication has done.

    Attributes:
        version: of the tables.
        copied: files.
        bytes: of these.
        removed: files of versions that nobody reads any more.
    """

    version: int
    copied: int = 0
    bytes: int = 0
    removed: int = 0


def publish(root: str | Path, url: str) -> Published:
    """Publish the tables of a folder, with the events that they contain.

    Args:
        root: the folder.
        url: where to.

    Raises:
        TablesUnusable: there are no tables, another publication runs, or the place has those of another folder.
        InvalidArgument: the URL names no place.
    """
    root, store = folder(root), ObjectStore(url)
    with locked(root, PUBLICATION_LOCK):
        own, there = folder_id(root), store.folder()
        if there not in {"", own}:
            raise TablesUnusable(f"{store.url} has the tables of another folder; name another place, or remove them")
        store.write("folder.json", json.dumps({"id": own}).encode())
        manifest, copied, size = _copied(root, store)
        manifest.superseded = []
        content = json.dumps({"tables_version": TABLES_VERSION, **manifest.__dict__}).encode()
        if (root / CHECKS).exists():
            store.write(CHECKS, (root / CHECKS).read_bytes())
        store.write(f"versions/{manifest.version:08}.json", content)
        store.write("manifest.json", content)
        return Published(manifest.version, copied, size, _remove_old(store, manifest))


def _copied(root: Path, store: ObjectStore) -> tuple[Manifest, int, int]:
    """Copy the files of the current version that are not there; return it, and how many and how large they were."""
    copied = size = 0
    for _ in range(ATTEMPTS):
        manifest = Manifest.read(root)
        if not manifest.folded or not manifest.built:
            raise TablesUnusable(f"{root} has no tables yet: run `celery-redis-plus spark ingest` and then `aggregate`")
        there = store.names()
        try:
            for name in sorted(manifest.referenced().difference(manifest.superseded)):
                expected = (root / name).stat().st_size
                if there.get(name, (-1,))[0] != expected:
                    store.upload(root / name, name)
                    copied, size = copied + 1, size + expected
        except FileNotFoundError:
            # A later version has replaced it, and it took more than a quarter of an hour.
            continue
        return manifest, copied, size
    raise TablesUnusable(f"{root} changes faster than {store.url} takes it; publish less often, or over a faster line")


def _remove_old(store: ObjectStore, current: Manifest) -> int:
    """Remove the files that no version of the last quarter of an hour names; return how many."""
    kept = current.referenced().union(*(version.referenced() for version in _kept_versions(store)))
    gone = [name for name in store.names() if name.endswith(".parquet") and name not in kept and name != CHECKS]
    for name in gone:
        store.delete(name)
    return len(gone)


def _kept_versions(store: ObjectStore) -> Iterator[Manifest]:
    """Yield the versions of the last quarter of an hour, and remove older ones."""
    versions = sorted(store.names("versions").items())
    since = datetime.now(UTC) - timedelta(seconds=KEPT_S)
    for place, (name, _) in enumerate(versions):
        # It is over when the next one begins.
        if place + 1 < len(versions) and versions[place + 1][1][1] < since:
            store.delete(name)
            continue
        content = json.loads(store.read(name) or b"{}")
        if content.pop("tables_version", None) == TABLES_VERSION:
            yield Manifest(**content)
