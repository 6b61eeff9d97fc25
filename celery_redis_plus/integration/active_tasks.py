"""Knows which messages a Celery worker still works on, when a connection was lost or the worker shuts down."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from celery.bootsteps import CLOSE, TERMINATE
from celery.concurrency.base import BasePool
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_redis_plus import clock
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.batched_tasks import is_in_batch
from celery_redis_plus.integration.lease_guard import was_given_back
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.prefork_pool import messages_in
from celery_redis_plus.transport.compat import decoded_body
from celery_redis_plus.transport.kombu_message import Message


class RunningTasks:
    """The `ActiveTasks` (broker/consumers) of one worker.

    After a connection loss Celery drops what it has not begun (`Consumer.on_close`, 5.6 and 5.7), "since it will be redelivered",
    and then starts its consumer again. What is dropped depends on the pool: prefork discards jobs that are not on their way to a
    child (see `integration.prefork_pool`); threads and greenlets run everything that was given to them, and nothing else: what
    waited in the worker's own timer or for a rate limit was cancelled. A cancelled request may live on for long (in Celery 5.7 it
    and its timer's entry refer to each other), so it counts whether it was given to the pool, not whether it lives.
    """

    def __init__(self, consumer: Any) -> None:
        """Watch `consumer`, without keeping it alive."""
        self._consumer = weakref.ref(consumer)
        self._started_at = 0.0
        self._doubted: weakref.WeakSet[Any] = weakref.WeakSet()

    def started(self) -> None:
        """Note that the consumer has started, or started again: what it has dropped is dropped by now."""
        self._started_at = clock.now_s()

    def is_stopping(self) -> bool:
        """Return whether the worker shuts down."""
        consumer = self._consumer()
        if consumer is None:
            return True
        blueprints = (consumer.blueprint, getattr(consumer.controller, "blueprint", None))
        return any(blueprint is not None and blueprint.state in {CLOSE, TERMINATE} for blueprint in blueprints)

    def stop_requested(self) -> bool:
        """Return whether the worker was told to end: its loop will see that with its next turn."""
        try:
            worker_compat.shutdown_check()()
        except (WorkerShutdown, WorkerTerminate):
            return True
        return False

    def waiting_in_pool(self) -> int:
        """Return how many tasks wait for a thread of the pool; 0 for pools without threads. From any thread."""
        consumer = self._consumer()
        executor = None if consumer is None else getattr(consumer.pool, "executor", None)
        return 0 if executor is None else worker_compat.thread_queue_size(executor)

    def is_active(self, message: Any, orphaned_at: float) -> bool | None:
        """Return whether a task's message will still be settled; None while Celery has not decided, and at the first doubt.

        Messages that are no tasks belong to somebody who consumes inside a worker: they go back, as with AMQP. So does every
        message in a cold shutdown: the process ends before its threads and greenlets do.
        """
        consumer = self._consumer()
        if consumer is None or worker_compat.is_terminating() or _has_stopped(consumer.pool) or not _is_task(message):
            return False
        if _is_active(message) or is_in_batch(message, consumer.pool):
            return True
        if self._started_at <= orphaned_at:
            return None
        if self._is_waiting(message, consumer):
            return True
        if message not in self._doubted:
            # It may have ended just now: a task is inactive before its ack, which waits for the loop's next turn.
            self._doubted.add(message)
            return None
        return False

    def _is_waiting(self, message: Any, consumer: Any) -> bool:
        """Return whether a task that had not begun before the restart will run."""
        if worker_compat.drops_waiting_jobs(consumer.pool):
            # What the pool has kept is on its way to a child.
            return id(message) in messages_in(consumer.pool)
        return isinstance(message, Message) and message.waits_in_pool


def count_carried(consumer: Any, running: RunningTasks) -> None:
    """Have the prefetch count of a consumer that has started again count what its pool still has of the time before.

    Else each lost connection lets the worker claim its whole prefetch beside that: it waits in the pool, and others are idle.
    Celery 5.6 lowers the count itself, and raises it again with new messages only.
    """
    worker_compat.restore_prefetch_count(consumer)
    channel = consumer.task_consumer.channel
    services = []
    for broker in channel.brokers:
        unacked_messages, waker = broker.session.service.unacked_messages, broker.consumer_session.waker
        for unacked in unacked_messages.orphaned():
            message = unacked.alive
            if message is not None and running.is_active(message, unacked.orphaned_at):
                unacked_messages.keep(unacked)
        unacked_messages.on_kept_settled = waker.wake
        services.append(unacked_messages)
    channel.qos.count_carried = lambda: sum([unacked_messages.count_kept() for unacked_messages in services])


def note_given(consumer: Any) -> None:
    """Have each message know when its task is given to the worker's pool, where it may wait; idempotent.

    For pools of threads and greenlets: a solo pool runs at once what it is given, and prefork knows its jobs.
    Has to be called when the pool has started, which tells no sooner what it does with waiting jobs, and before the consumer
    builds its strategies, which is when Celery looks up where tasks go.
    """
    keeps_waiting = not (worker_compat.drops_waiting_jobs(consumer.pool) or worker_compat.is_solo(consumer.pool))
    if keeps_waiting and worker_compat.ON_TASK_REQUEST.of(consumer) is not None:
        wrap(consumer, worker_compat.ON_TASK_REQUEST.name, _give)


def _give(give: Callable[[Any], Any], request: Any) -> Any:
    if was_given_back(request):
        return None
    if isinstance(request.message, Message):
        request.message.given_to_pool = True
    return give(request)


def _is_task(message: Any) -> bool:
    if "task" in message.headers:
        return True
    # Celery's first message protocol. What was decoded is a dict then; nothing is decoded for this.
    body = decoded_body(message)
    return isinstance(body, dict) and "task" in body


def _has_stopped(pool: Any) -> bool:
    """Return whether the pool has ended, so that no task runs any more."""
    return pool is None or worker_compat.POOL_STATE.of(pool) == BasePool.TERMINATE


def _is_active(message: Any) -> bool:
    request = worker_compat.requests().get(message.headers.get("id"))
    if request is not None and request.message is message:
        return request in worker_compat.active_requests()
    # The first protocol has its id in the body; and two messages may have one id, after a retry.
    return any(request.message is message for request in worker_compat.active_requests())
