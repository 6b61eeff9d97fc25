"""Lets Spark find the sink `celery_task` by itself; see `pyspark_celery_redis`."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from celery_redis_plus.spark.sink import CeleryTaskSink

    class DefaultSource(CeleryTaskSink):
        """The sink `celery_task`."""
