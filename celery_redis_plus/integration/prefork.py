"""Keeps a prefork pool from forgetting jobs that its processes run, or are about to, when a connection is lost.

`AsynPool.flush` drops from the pool's cache of jobs what no child is known to have accepted, "since it will be redelivered by
the broker" (Celery 5.7; 5.6 drops all). But a job whose writing has begun is on its way: the child runs it, nobody hears of its
result, and its message goes to somebody else besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import celery

from celery_redis_plus.integration.wrapping import wrap

#: The first version of Celery whose pool remembers jobs that were accepted.
REMEMBERS = (5, 7)


def keep_running_jobs(pool: Any) -> None:
    """Let `pool.flush` keep the jobs that will run; idempotent, and without effect for other pools."""
    cache = getattr(getattr(pool, "_pool", None), "_cache", None)
    if cache is not None and getattr(pool, "flush", None) is not None:
        wrap(pool, "flush", _flush, cache)


def messages_in(pool: Any) -> set[int]:
    """Return the `id()` of every message whose job stands in the cache of a prefork pool."""
    cache = getattr(getattr(pool, "_pool", None), "_cache", None)
    found = set()
    for job in _copy(cache or {}):
        # Celery gives a pool the methods of its request (`Request.execute_using_pool`).
        request = getattr(getattr(job, "_accept_callback", None), "__self__", None)
        found.add(id(getattr(request, "message", None)))
    return found


def _flush(flush: Any, cache: dict[int, Any]) -> None:
    """Flush, and keep what runs or is on its way to a child."""
    kept = {number: job for number, job in cache.items() if job.accepted() or _is_on_its_way(job)}
    pretended = [job for job in kept.values() if not job.accepted()]
    for job in pretended:
        # What is accepted is neither cancelled nor discarded, and what is half written is written to its end.
        job._accepted = True  # noqa: SLF001 - there is no other way to say so
    try:
        flush()
    finally:
        for job in pretended:
            # The child's own word still counts: it calls what Celery waits for.
            job._accepted = False  # noqa: SLF001 - as above
    if (celery.VERSION.major, celery.VERSION.minor) < REMEMBERS:
        cache.clear()
        cache.update(kept)


def _is_on_its_way(job: Any) -> bool:
    """Return whether the writing of a job has begun, to a child that lives."""
    process = getattr(job, "_write_to", None)
    return process is not None and process._is_alive()  # noqa: SLF001 - as the pool itself asks


def _copy(cache: dict[int, Any]) -> Iterable[Any]:
    while True:
        try:
            return list(cache.values())
        except RuntimeError:
            continue
