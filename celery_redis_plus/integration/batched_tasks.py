"""Has the messages of celery-batches begin and end with the batch in which a pool runs them.

Such a task hands its pool no request of Celery's, by which a worker knows what runs (`celery_batches.Batches.flush`, 0.11).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery_redis_plus.broker.consumers.last_error import failure_of, text_of
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.lease_guard import has_lease, was_given_back
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.prefork_pool import copied
from celery_redis_plus.transport.kombu_message import Message

#: Messages of batches -> the job of a prefork pool, which may drop it; None of other pools, and while it is handed over.
_jobs = weakref.WeakKeyDictionary[Message, weakref.ref[Any] | None]()


def follow_batches(consumer: Any) -> None:
    """Have each task of an app that collects its messages tell when it runs them; idempotent."""
    for task in consumer.app.tasks.values():
        if collects(task):
            wrap(task, "flush", _flush, consumer.pool)


def collects(task: Any) -> bool:
    """Return whether a task collects its messages, and runs several at once."""
    return hasattr(task, "flush_every") and callable(getattr(task, "flush", None))


def batches_run() -> bool:
    """Return whether batches of this process have unsettled messages."""
    return any(not message.acknowledged for message in list(_jobs))


def is_in_batch(message: Any, pool: Any) -> bool:
    """Return whether a message is in a batch that its worker's pool has not ended, nor dropped."""
    if not isinstance(message, Message) or message not in _jobs:
        return False
    job = _jobs[message]
    return job is None or any(job() is known for known in copied((worker_compat.job_cache(pool) or {}).values()))


def _flush(flush: Callable[[list[Any]], Any], pool: Any, requests: Iterable[Any]) -> Any:
    # A message may have gone back, been lost or expired while it waited for others.
    batch = [one for one in requests if not was_given_back(one) and has_lease(one) and not one.revoked()]
    if not batch:
        return None
    ours = [request for request in batch if isinstance(request.message, Message)]
    for request in ours:
        # A batch runs whole: one early ack that cannot leave does not stop it, since those of its other messages have left.
        request.crp_begins_here = False
        message = request.message
        _jobs[message] = None
        message.begin(acked_early=not request.task.acks_late)
        message.delivered_by.consumer_session.service.unhandled_in_a_row = 0
    job = flush(batch)
    if worker_compat.drops_waiting_jobs(pool):
        worker_compat.JOB_ERROR_CALLBACK.set(job, partial(_end_lost, ours))
        # The job has the messages, so they may not have the job.
        _jobs.update((request.message, weakref.ref(job)) for request in ours)
    return job


def _end_lost(requests: list[Any], died: Any) -> None:
    """Send messages back whose pool process has died: the plugin does not settle them. Those acked early have failed."""
    # billiard's `ExceptionInfo`, the exception in it perhaps in another wrapper (`celery.worker.request.Request.on_failure`).
    error = getattr(died, "exception", died)
    error = getattr(error, "exc", error)
    for request in requests:
        message = request.message
        if not message.acknowledged:
            message.mark_failed()
            message.requeue()
        elif not request.task.acks_late:
            message.tell_failed("failure", failure_of(type(error).__name__, text_of(error)))
