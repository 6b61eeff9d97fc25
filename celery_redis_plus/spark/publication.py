"""Publishes a folder of tables at a URL: readers there see one version of all tables, whole.

The folder itself stays where it is. A publication copies the files that a version names, then replaces one manifest. It may be
killed at any moment.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark import delta_log
from celery_redis_plus.spark.folder import TablesFolder
from celery_redis_plus.spark.leftovers import KEPT_S, kept_versions
from celery_redis_plus.spark.manifest import CHECKS, Manifest
from celery_redis_plus.spark.roots import folder_of, opened
from celery_redis_plus.spark.storage import PUBLICATION_LOCK

if TYPE_CHECKING:
    from celery_redis_plus.spark.storage import Storage

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
    folder, store = TablesFolder(folder_of(root, "its tables are at a URL already")), opened(url)
    with folder.locked(PUBLICATION_LOCK):
        own, there = folder.identity(), json.loads(store.read("folder.json") or b"{}")
        if there not in ({}, {"id": own, "published": True}) or (not there and store.head() is not None):
            raise TablesUnusable(f"{store} has other tables; name another place, or remove them")
        store.write("folder.json", json.dumps({"id": own, "published": True}).encode())
        manifest, copied, size = _copied(folder, store)
        manifest.superseded = []
        content = manifest.text().encode()
        if (checks := folder.read(CHECKS)) is not None:
            store.write(CHECKS, checks)
        store.write(f"versions/{manifest.version:08}.json", content)
        store.write("manifest.json", content)
        delta_log.mirror(folder, store, manifest)
        return Published(manifest.version, copied, size, _remove_old(store, manifest))


def _copied(folder: TablesFolder, store: Storage) -> tuple[Manifest, int, int]:
    """Copy the files of the current version that are not there; return it, and how many and how large they were."""
    copied = size = 0
    for _ in range(ATTEMPTS):
        manifest = Manifest.read(folder)
        manifest.check_built(folder)
        there = store.names()
        try:
            for name in sorted(manifest.referenced().difference(manifest.superseded)):
                expected = (folder.root / name).stat().st_size
                if there.get(name, (-1,))[0] != expected:
                    store.upload(folder.root / name, name)
                    copied, size = copied + 1, size + expected
        except FileNotFoundError:
            # A later version has replaced it, and it took more than a quarter of an hour.
            continue
        return manifest, copied, size
    raise TablesUnusable(f"{folder} changes faster than {store} takes it; publish less often, or over a faster line")


def _remove_old(store: Storage, current: Manifest) -> int:
    """Remove the files that no version of the last quarter of an hour names; return how many."""
    versions = kept_versions(store, current.version, time.time() - KEPT_S)
    kept = current.referenced().union(*(version.referenced() for version in versions))
    gone = [name for name in store.names() if _is_of_tables(name) and name not in kept]
    store.remove(gone)
    return len(gone)


def _is_of_tables(name: str) -> bool:
    return name.endswith(".parquet") and name != CHECKS and "/_delta_log/" not in name
