"""Knows which messages a Celery worker still works on, when a connection was lost or the worker shuts down."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from celery.bootsteps import CLOSE, TERMINATE
from celery.concurrency.base import BasePool

from celery_redis_plus import clock
from celery_redis_plus.integration import compat
from celery_redis_plus.integration.prefork_pool import messages_in
from celery_redis_plus.transport.compat import decoded_body


class RunningTasks:
    """The `ActiveTasks` (broker/consumers) of one worker.

    After a connection loss Celery drops what it has not begun (`Consumer.on_close`, 5.6 and 5.7), "since it will be redelivered",
    and then starts its consumer again. What is dropped depends on the pool: prefork discards jobs that are not on their way to a
    child (see `integration.prefork`); threads and greenlets run everything that was given to them. Nothing tells who is in their
    queues, but a message lives as long as its request does, so what is alive there will run, except tasks that wait in the
    worker's own timer: those were cancelled.
    """

    def __init__(self, consumer: Any) -> None:
        """Watch `consumer`, without keeping it alive."""
        self._consumer = weakref.ref(consumer)
        self._started_at = 0.0
        self._cancelled: weakref.WeakSet[Any] | None = None
        self._doubted: weakref.WeakSet[Any] = weakref.WeakSet()

    def started(self) -> None:
        """Note that the consumer has started, or started again: what it has dropped is dropped by now."""
        self._started_at = clock.now_s()
        self._cancelled = None

    def is_stopping(self) -> bool:
        """Return whether the worker shuts down."""
        consumer = self._consumer()
        if consumer is None:
            return True
        blueprints = (consumer.blueprint, getattr(consumer.controller, "blueprint", None))
        return any(blueprint is not None and blueprint.state in {CLOSE, TERMINATE} for blueprint in blueprints)

    def stop_requested(self) -> bool:
        """Return whether the worker was told to end: its loop will see that with its next turn."""
        return compat.is_stopping()

    def is_active(self, message: Any, orphaned_at: float) -> bool | None:
        """Return whether a task's message will still be settled; None while Celery has not decided, and at the first doubt.

        Messages that are no tasks belong to somebody who consumes inside a worker: they go back, as with AMQP. So does every
        message in a cold shutdown: the process ends before its threads and greenlets do.
        """
        consumer = self._consumer()
        ends = consumer is None or compat.is_terminating() or _has_stopped(consumer.pool)
        if ends or not _is_task(message):
            return False
        if _is_active(message):
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
        if compat.drops_waiting_jobs(consumer.pool):
            # What the pool has kept is on its way to a child.
            return id(message) in messages_in(consumer.pool)
        return message not in self._cancelled_by(consumer)

    def _cancelled_by(self, consumer: Any) -> weakref.WeakSet[Any]:
        """Return the messages whose timers Celery cancelled with this restart; a cancelled entry lies there until its time."""
        if self._cancelled is None:
            self._cancelled = weakref.WeakSet(_messages_of_cancelled(consumer.timer))
        return self._cancelled


def _is_task(message: Any) -> bool:
    if "task" in message.headers:
        return True
    # Celery's first message protocol. What was decoded is a dict then; nothing is decoded for this.
    body = decoded_body(message)
    return isinstance(body, dict) and "task" in body


def _has_stopped(pool: Any) -> bool:
    """Return whether the pool has ended, so that nobody works any more."""
    return pool is None or compat.POOL_STATE.of(pool) == BasePool.TERMINATE


def _is_active(message: Any) -> bool:
    request = compat.requests().get(message.headers.get("id"))
    if request is not None and request.message is message:
        return request in compat.active_requests()
    # The first protocol has its id in the body; and two messages may have one id, after a retry.
    return any(request.message is message for request in _copy(compat.active_requests()))


def _copy(requests: Iterable[Any]) -> list[Any]:
    """Return the members of a set that another thread may change meanwhile."""
    while True:
        try:
            return list(requests)
        except RuntimeError:
            continue


def _messages_of_cancelled(timer: Any) -> list[Any]:
    """Return the messages of the tasks in `timer` that will not run; timers of greenlets keep none."""
    messages = []
    for waiting in compat.timer_queue(timer):
        entry = getattr(waiting, "entry", None)
        arguments = getattr(entry, "args", ())
        if arguments and getattr(entry, "canceled", False) and hasattr(arguments[0], "message"):
            messages.append(arguments[0].message)
    return messages
