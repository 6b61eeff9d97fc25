"""How a version of all tables comes to count, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.spark import delta_log

if TYPE_CHECKING:
    from celery_redis_plus.spark.layers import Layers


def commit(layers: Layers) -> None:
    """Let what was written count, and tell it the logs of Delta Lake, where there are some.

    Killed before the manifest is replaced, the tables are as they were; after it, the next job completes the logs.

    Raises:
        TablesUnusable: another process has taken over.
    """
    storage, manifest = layers.storage, layers.manifest
    if delta_log.is_on(storage):
        delta_log.bring_home(layers)
    manifest.write(storage)
    delta_log.follow(storage, manifest)
