"""Lets a worker begin only the tasks that it still holds, and tell the broker when it begins one that failed before.

A worker that stood still for longer than the visibility timeout has lost what it had prefetched: others have it. Celery does not
know, and would go through all of it. Prefork lets tasks wait for a free process in a semaphore (`WorkController._process_task`);
a pool of threads in its own queue, where `requests.BrokerRequest.on_accepted` asks. Solo, gevent and eventlet begin at once what
is delivered, and the transport has looked then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.unhandled_messages import TaskLostError, end_unhandled
from celery_redis_plus.transport.kombu_message import Message

logger = logging.getLogger(__name__)

#: Why a task is not begun that is acked before it: the connection is lost.
UNACKED = " and goes back: its ack cannot leave before it"


def install_lease_guard(consumer: Any) -> None:
    """Have a prefork worker look at each task again when a process is free for it; idempotent."""
    controller = consumer.controller
    if getattr(controller, "semaphore", None) is not None and worker_compat.PROCESS_TASK.of(controller) is not None:
        wrap(controller, worker_compat.PROCESS_TASK.name, _process, controller)


def guard_without_putlocks(consumer: Any) -> None:
    """Do the same where tasks do not wait for a free process (`worker_pool_putlocks = False`); idempotent.

    Has to be called before the consumer builds its strategies: Celery has handed it the method itself, and they keep it.
    """
    controller = consumer.controller
    process = worker_compat.PROCESS_TASK.of(controller)
    given = process is not None and getattr(controller, "process_task", None) == process
    if given and getattr(consumer.pool, "uses_semaphore", False) and worker_compat.ON_TASK_REQUEST.of(consumer) is not None:
        wrap(consumer, worker_compat.ON_TASK_REQUEST.name, _process_at_once)


def begin_in_pool(consumer: Any) -> None:
    """Have a delivered task begin when the pool begins it: until then, the loss of the worker is no failure of the task.

    `_process` below says so for prefork, `BrokerRequest.on_accepted` for the other pools.
    """
    begin = getattr(getattr(consumer.task_consumer, "channel", None), "begin_in_pool", None)
    if begin is not None:
        begin()


def _process(process: Callable[[Any], Any], controller: Any, request: Any) -> Any:
    if has_lease(request):
        _begin(request)
        try:
            return process(request)
        except Exception as error:
            # Not in the hands of whoever handles deliveries: it may have waited for a process.
            if not end_unhandled(request.message, error, controller.consumer):
                raise
    # Through the loop: the next one in line may be lost as well, and the one after it.
    controller.hub.call_soon(controller.semaphore.release)
    return None


def _process_at_once(process: Callable[[Any], Any], request: Any) -> Any:
    if has_lease(request):
        _begin(request)
        return process(request)
    return None


def _begin(request: Any) -> None:
    if isinstance(request.message, Message):
        # Before the job is packed, and written to a child, which may end this process before it says that it has accepted it.
        request.message.begin(acked_early=_acks_early(request))


def was_given_back(request: Any) -> bool:
    """Return whether the message of `request` went back to its queue while it waited; such a one is forgotten here.

    A timer of greenlets may fire in a worker that shuts down, after what had not begun went back.
    """
    gone = isinstance(request.message, Message) and request.message.given_back
    if gone:
        worker_compat.forget(request)
    return gone


def has_lease(request: Any) -> bool:
    """Return whether the message of `request` is ours; what is not is forgotten here."""
    message = request.message
    if not isinstance(message, Message) or message.acknowledged:
        return True
    tag, channel = message.delivery_tag, message.delivered_by
    session = channel.consumer_session
    try:
        if not session.leases.holds(tag):
            channel.qos.drop(tag)
            why = ": its message was given to another consumer"
        elif session.commands.connected or not _acks_early(request):
            return True
        else:
            channel.qos.leave(tag)
            why = UNACKED
    except (RedisError, OSError):
        # The next worker that takes it begins it, perhaps this worker.
        channel.qos.leave(tag)
        why = " and goes back: it is unknown whether its message is held"
    _forget(request, why)
    return False


def refuse_unacked(request: Any) -> None:
    """Forget a request whose message goes back, since its early ack could not leave. Raises TaskLostError."""
    _forget(request, UNACKED)
    raise TaskLostError(request.id)


def _acks_early(request: Any) -> bool:
    acks_early = getattr(request, "crp_acks_early", None)
    return acks_early is None or bool(acks_early())


def _forget(request: Any, why: str) -> None:
    """Take a request that is not begun out of the worker's lists, and log it."""
    extra = {"task_name": request.name, "task_id": request.id}
    logger.info("task %s[%s] is not begun%s", request.name, request.id, why, extra=extra)
    worker_compat.forget(request)
