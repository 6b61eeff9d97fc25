"""Puts the small files of all tables into one or a few a day. An aggregation does so in part; this leaves the fewest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.spark.layers import LAYOUTS, Layers
from celery_redis_plus.spark.leftovers import remove_leftovers
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.versions import commit

if TYPE_CHECKING:
    from celery_redis_plus.spark.storage import Storage


def compact(root: str | Path | Storage, *, kept_s: float | None = None) -> tuple[int, int]:
    """Compact the days that have several small files; return how many files there were, and are, of all tables.

    Killed at any moment, the tables are as they were before or as they are after. Files that are full are not rewritten. Incoming
    events that no aggregation has taken yet are left.

    Args:
        root: the folder of tables, or their URL.
        kept_s: as of `fold.fold`.

    Raises:
        TablesUnusable: another aggregation or compaction runs there.
    """
    storage = opened(root)
    with storage.locked():
        old = Manifest.read(storage)
        remove_leftovers(storage, old, kept_s)
        new = old.following()
        layers = Layers(storage, new)
        for table in LAYOUTS:
            layers.divide(table, few_too=True)
            for date in list(layers.dated(table)):
                layers.tidy(table, date, most=1)
        before, after = _files(old), _files(new)
        if before == after:
            return 0, 0
        commit(layers)
        return len(before), len(after)


def _files(manifest: Manifest) -> set[str]:
    dated = (manifest.events, *(dates for table, dates in manifest.tables.items() if table in LAYOUTS))
    return {file for dates in dated for files in dates.values() for file in files}
