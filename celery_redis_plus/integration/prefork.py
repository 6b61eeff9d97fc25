"""Keeps Celery 5.6 from forgetting the running jobs of a prefork pool when a connection is lost.

`AsynPool.flush` of 5.6 empties the pool's cache of jobs. A child goes on with its task, but nobody hears of its result any more,
so its message is never settled. Later versions (5.7) discard only the jobs that no child has accepted; so does this.
"""

from __future__ import annotations

import functools
from typing import Any

import celery

#: The first version of Celery whose pool remembers running jobs.
REMEMBERS = (5, 7)


def keep_running_jobs(pool: Any) -> None:
    """Let `pool.flush` keep the accepted jobs; idempotent, and without effect for other pools and later versions."""
    flush = getattr(pool, "flush", None)
    cache = getattr(getattr(pool, "_pool", None), "_cache", None)
    if (celery.VERSION.major, celery.VERSION.minor) >= REMEMBERS or flush is None or cache is None:
        return
    if isinstance(flush, functools.partial) and flush.func is _flush:
        return
    pool.flush = functools.partial(_flush, flush, cache)


def _flush(flush: Any, cache: dict[int, Any]) -> None:
    """Flush, and put back what runs."""
    running = {number: job for number, job in cache.items() if job.accepted()}
    flush()
    cache.clear()
    cache.update(running)
