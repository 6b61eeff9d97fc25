"""Keeps a prefork pool from forgetting jobs that its processes run, or are about to, when a connection is lost.

`AsynPool.flush` drops from the pool's cache of jobs what no child is known to have accepted, "since it will be redelivered by
the broker" (Celery 5.7; 5.6 drops all). But a job whose writing has begun is on its way: the child runs it, its
result is not reported, and its message goes to another worker besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.patching import wrap


def install_prefork_guard(pool: Any) -> None:
    """Let `pool.flush` keep the jobs that will run; idempotent, and without effect for other pools."""
    cache = worker_compat.job_cache(pool)
    if cache is not None:
        wrap(pool, "flush", _flush, cache)


def messages_in(pool: Any) -> set[int]:
    """Return the `id()` of every message whose job stands in the cache of a prefork pool."""
    found = set()
    for job in copied((worker_compat.job_cache(pool) or {}).values()):
        # Celery gives a pool the methods of its request (`Request.execute_using_pool`).
        request = getattr(worker_compat.JOB_CALLBACK.of(job), "__self__", None)
        found.add(id(getattr(request, "message", None)))
    return found


def _flush(flush: Any, cache: dict[int, Any]) -> None:
    """Flush, and keep what runs or is on its way to a child."""
    kept = {number: job for number, job in cache.items() if job.accepted() or _is_on_its_way(job)}
    pretended = [job for job in kept.values() if not job.accepted()]
    for job in pretended:
        # What is accepted is neither cancelled nor discarded, and what is half written is written to its end.
        worker_compat.JOB_ACCEPTED.set(job, True)
    try:
        flush()
    finally:
        for job in pretended:
            # The child's own word still counts: it calls what Celery waits for.
            worker_compat.JOB_ACCEPTED.set(job, False)
    if not worker_compat.pool_remembers_jobs():
        cache.clear()
        cache.update(kept)


def _is_on_its_way(job: Any) -> bool:
    """Return whether the writing of a job has begun, to a child that lives."""
    process = worker_compat.JOB_WRITTEN_TO.of(job)
    is_alive = None if process is None else worker_compat.PROCESS_ALIVE.of(process)
    return is_alive is not None and bool(is_alive())


def copied(members: Iterable[Any]) -> list[Any]:
    """Return the members of a dict that another thread may change meanwhile."""
    while True:
        try:
            return list(members)
        except RuntimeError:
            continue
