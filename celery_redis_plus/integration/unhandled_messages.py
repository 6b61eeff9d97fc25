"""Keeps a worker going beside a message that Celery cannot take in.

Celery's handler of deliveries (`Consumer.create_task_handler`, 5.6 and 5.7) expects three kinds of errors. Any other ends the
worker: of a body `null`, a `task` that is a list, an `id` that is a number. An unacked message goes back, and ends the next one.
Here it becomes a dead letter with the error. In threads and greenlets nobody meets the error, and the message would stay unacked.
What is raised around a task, as by a result backend that is away, is a failure of the task there and in a solo worker, as it is
in prefork: else its request stays active, and its message unacked, until the worker ends.
Events that `Gossip.on_message` cannot handle come to all workers at once; they are passed over.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import InvalidTaskError, NotRegistered, WorkerLostError, WorkerShutdown, WorkerTerminate
from celery.worker.consumer import Gossip

from celery_redis_plus.broker.consumers.last_error import failure_by, text_of
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.transport.kombu_message import Message

logger = logging.getLogger(__name__)


class TaskEndedError(Exception):
    """A task was ended by an error around it; the pool goes on with its next one."""


class TaskLostError(Exception):
    """The task is not begun: another consumer has its message, it expired, or its early ack could not leave. It ends its job."""


#: Kinds of events that are logged, once each, and characters of a kind.
MOST_KINDS, LONGEST_KIND = 20, 200

#: So many messages end, and no task begins between them: then something is wrong with the worker, and it ends.
MOST_IN_A_ROW = 50
#: What ends a worker, and not one of its tasks.
ENDS_OF_WORKERS = (WorkerShutdown, WorkerTerminate, KeyboardInterrupt)
#: What is wrong with the process, and not with a message: all messages would end so.
PROCESS_ERRORS = (MemoryError, OSError, SoftTimeLimitExceeded)
#: Where these raise, the pool has the task. Errors there may be the pool's, or its result backend's, which is away.
POOLS = ("celery.concurrency", "billiard")
#: What a message leads to there: an id that the result backend cannot use, a `chain` that is a number.
DATA_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def contain_unhandled(consumer: Any) -> None:
    """Let an error in Celery's handlers end only the message that it is about; idempotent.

    Has to be called before the consumer starts, which hands out its handlers.
    """
    wrap(consumer, "create_task_handler", _contained, consumer)
    for refused in ("on_unknown_message", "on_unknown_task", "on_invalid_task"):
        wrap(consumer, refused, _told)
    if worker_compat.has_threads(consumer.pool) or consumer.pool.is_green:
        wrap(consumer.pool, "apply_async", _apply_guarded, consumer)
    elif worker_compat.is_solo(consumer.pool):
        wrap(consumer.pool, "on_apply", _apply_guarded, consumer)
    logged: set[str] = set()
    # Of the class: gossip begins to listen before our step begins.
    wrap(Gossip, "on_message", _heard, logged)


def _contained(create: Callable[..., Any], consumer: Any, *args: Any, **named: Any) -> Callable[[Any], Any]:
    handle = create(*args, **named)

    def on_task_received(message: Any) -> Any:
        try:
            return handle(message)
        except Exception as error:
            if not end_unhandled(message, error, consumer):
                raise

    return on_task_received


def _told(refuse: Callable[..., Any], body: Any, message: Any, error: Exception | None = None) -> Any:
    """Have the dead letter of a message that Celery refuses tell why: of a task that the worker does not know, for instance."""
    if isinstance(message, Message):
        if isinstance(error, KeyError):
            error = NotRegistered(*error.args)
        message.note_outcome("", failure_by(error or InvalidTaskError("it names no task")))
    return refuse(body, message) if error is None else refuse(body, message, error)


def _apply_guarded(apply: Callable[..., Any], consumer: Any, target: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Have a thread, a greenlet or a solo worker end the task at which an error is raised around it, and its message."""
    accept = named.get("accept_callback")
    request = getattr(accept, "__self__", None)
    if accept is not None and consumer.pool.is_green:
        named["accept_callback"] = partial(_accept_in_greenlet, accept)
    has_limit = bool(named.get("timeout") or getattr(consumer.pool, "timeout", None))

    def guarded(*given: Any, **given_named: Any) -> Any:
        try:
            return target(*given, **given_named)
        except BaseException as error:
            # gevent's Timeout is no Exception: the hard time limit of Celery's pool, which ends the task by `on_timeout`.
            is_limit = has_limit and not isinstance(error, Exception) and type(error).__name__ == "Timeout"
            if is_limit or not _end_task(request, error):
                raise
            raise TaskEndedError(repr(error)) from error

    try:
        return apply(guarded, *args, **named)
    except (TaskEndedError, TaskLostError):
        # Solo, whose loop goes on.
        return None


def _accept_in_greenlet(accept: Callable[..., Any], *args: Any) -> Any:
    """Have a task that is not begun end its greenlet as one that was killed: any other exception is printed."""
    from greenlet import GreenletExit

    try:
        return accept(*args)
    except TaskLostError as error:
        raise GreenletExit from error


def _end_task(request: Any, error: BaseException) -> bool:
    """End the task around which `error` was raised; return False where it is not a task's, or none that ends one."""
    message = getattr(request, "message", None)
    # A greenlet that is killed ends by GreenletExit, which Celery's pools know.
    if not isinstance(message, Message) or isinstance(error, ENDS_OF_WORKERS) or type(error).__name__ == "GreenletExit":
        return False
    if isinstance(error, MemoryError) or not isinstance(error, Exception):
        # `sys.exit`, a cancelled coroutine: in prefork they end the process, and are a lost worker.
        error = WorkerLostError(repr(error)).with_traceback(error.__traceback__)
    logger.error("task %s failed by an error around it", request.id, exc_info=error, extra={"task_id": request.id})
    # As prefork's main process does. A task that is acked early was not begun where its message is unacked still.
    request.on_failure(ExceptionInfo((type(error), error, error.__traceback__)))
    if not message.acknowledged:
        request.reject(requeue=True)
    return True


def end_unhandled(message: Any, error: Exception, consumer: Any) -> bool:
    """End a message at which `error` was raised; return False where that is not the message's fault, and was left alone."""
    if not _is_of_message(error, message, consumer):
        return False
    _end(message, error, consumer)
    return True


def _heard(on_message: Callable[..., Any], logged: set[str], gossip: Any, prepare: Any, message: Any) -> Any:
    try:
        return on_message(gossip, prepare, message)
    except DATA_ERRORS as error:
        if not isinstance(message, Message):
            raise
        message.delivered_by.consumer_session.service.unreadable += 1
        # One line for each kind: somebody who sends such events sends many.
        kind = f"{type(error).__name__}: {text_of(error)}"[:LONGEST_KIND]
        if kind not in logged and len(logged) < MOST_KINDS:
            logged.add(kind)
            logger.exception("an event of another worker cannot be handled, and is passed over: %s", kind)
        return None


def _is_of_message(error: Exception, message: Any, consumer: Any) -> bool:
    if not isinstance(message, Message) or message.delivered_by.consumer_session.service.unhandled_in_a_row >= MOST_IN_A_ROW:
        return False
    if isinstance(error, (*PROCESS_ERRORS, *consumer.connection_errors, *consumer.channel_errors)):
        return False
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, DATA_ERRORS) or not any(name.startswith(POOLS) for name in frames)


def _end(message: Message, error: Exception, consumer: Any) -> None:
    """Reject `message`, unless it is settled: acked early, or rejected by Celery, which then met another error."""
    where = {"tag": message.delivery_tag, "queue": message.queue}
    line = "message %s of queue %r cannot be handled" + ("" if message.acknowledged else ": to the dead letters")
    logger.error(line, message.delivery_tag, message.queue, exc_info=error, extra=where)
    service = message.delivered_by.consumer_session.service
    service.unreadable += 1
    service.unhandled_in_a_row += 1
    for request in list(worker_compat.requests().values()):
        if request.message is message:
            worker_compat.forget(request)
    if not message.acknowledged:
        message.note_outcome("", failure_by(error))
        message.reject_log_error(logger, consumer.connection_errors)
