"""Lets Spark find the source `celery_redis` by itself: it looks for `DefaultSource` in modules named `pyspark_*`.

An import error here would break the lookup of every source, so a missing pyarrow only hides this one.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from celery_redis_plus.spark.source import CeleryRedisSource

    class DefaultSource(CeleryRedisSource):
        """The source `celery_redis`."""
