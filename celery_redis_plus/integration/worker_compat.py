"""The names of Celery's and billiard's internals that this package uses in workers (Celery 5.6 and 5.7, billiard 4.2 and 4.3).

They are declared as those of every process are in `compat`. This module loads Celery's worker, which a process that only
publishes does without: it takes 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import celery
from billiard import einfo
from celery.app import trace
from celery.concurrency import prefork, solo, thread
from celery.concurrency.base import BasePool
from celery.worker import control, state
from celery.worker.consumer import Consumer

from celery_redis_plus.internals import Internal

#: Bootsteps of every consumer, of any app.
DEFAULT_STEPS = Internal(
    "celery.worker.consumer.consumer:Consumer.Blueprint",
    "default_steps",
    "everything that this package does in workers of apps without configure_app; call configure_app(app)",
)
PROCESS_TASK = Internal(
    "celery.worker.worker:WorkController",
    "_process_task",
    "the check whether a prefork worker still holds a task that it begins; after a standstill longer than visibility_timeout, "
    "tasks that it had prefetched may run twice",
)
ANNOUNCE_REVOKED = Internal(
    "celery.worker.request:Request",
    "_announce_revoked",
    "the ending 'revoked': the event of a revoked task has no reason",
)
#: As above, for apps with ack policies: `manual` would requeue revoked tasks for ever.
ANNOUNCE_REVOKED_FOR_POLICIES = Internal(ANNOUNCE_REVOKED.where, ANNOUNCE_REVOKED.name)
CALL_SOON = Internal(
    "celery.worker.consumer.consumer:Consumer",
    "call_soon",
    "acks that leave at once; they leave with the next turn of the worker's loop",
)
CONTROL_PANEL = Internal("celery.worker.control", "Panel", "delayed tasks of the broker in `inspect scheduled`")
CONTROL_COMMANDS = Internal("celery.worker.control:Panel", "data", CONTROL_PANEL.without)
#: False while Celery takes off the prefetch count what runs since before a connection loss (5.6; 5.7 not with us).
PREFETCH_RESTORED = Internal(
    "celery.worker.consumer.consumer:Consumer",
    "_maximum_prefetch_restored",
    "undoing that Celery 5.6 lowers the prefetch count after a lost connection: such a worker takes less until its tasks end",
)
#: Billiard's pool behind a prefork pool, and its jobs.
PROCESS_POOL = Internal(
    "celery.concurrency.prefork:TaskPool",
    "_pool",
    "knowing which tasks a prefork pool runs: after a connection loss some run twice",
)
POOL_JOBS = Internal("billiard.pool:Pool", "_cache", PROCESS_POOL.without)
JOB_ACCEPTED = Internal("billiard.pool:ApplyResult", "_accepted", PROCESS_POOL.without)
JOB_CALLBACK = Internal("billiard.pool:ApplyResult", "_accept_callback", PROCESS_POOL.without)
JOB_ERROR_CALLBACK = Internal(
    "billiard.pool:ApplyResult",
    "_error_callback",
    "the return of a batch of celery-batches whose pool process has died; its messages stay unacked until the worker ends",
)
JOB_WRITTEN_TO = Internal("billiard.pool:ApplyResult", "_write_to", PROCESS_POOL.without)
PROCESS_ALIVE = Internal("billiard.process:BaseProcess", "_is_alive", PROCESS_POOL.without)
POOL_STATE = Internal("celery.concurrency.base:BasePool", "_state", "noticing that a pool has ended before its worker has")
#: What a worker knows of its tasks.
ACTIVE_REQUESTS = Internal("celery.worker.state", "active_requests", PROCESS_POOL.without)
REQUESTS = Internal("celery.worker.state", "requests", PROCESS_POOL.without)
TASK_READY = Internal("celery.worker.state", "task_ready", "forgetting tasks that a worker does not begin, in `inspect reserved`")
SHOULD_TERMINATE = Internal(
    "celery.worker.state", "should_terminate", "giving back at once what a worker holds that was told to end without waiting"
)
MAYBE_SHUTDOWN = Internal("celery.worker.state", "maybe_shutdown", "the end of a solo worker between two tasks of a batch")
ON_TASK_REQUEST = Internal(
    "celery.worker.consumer.consumer:Consumer",
    "on_task_request",
    "knowing what waits in a pool's own queue: after a connection loss, tasks that wait there for a thread run twice",
)

#: What runs a task in a pool process.
FAST_TRACE_TASK = Internal(
    "celery.app.trace", "fast_trace_task", "freeing what rejected tasks leave in a pool process before the next one is rejected"
)
#: What a task has ended with.
TRACE_INFO = Internal("celery.app.trace", "TraceInfo", FAST_TRACE_TASK.without)
#: What billiard makes of an exception on its way from a pool process.
EXCEPTION_WITH_TRACEBACK = Internal(
    "billiard.einfo",
    "ExceptionWithTraceback",
    "the class of a failed task's exception in events and dead letters of prefork pools",
)
#: The classes of pools, by which their workers are told apart.
SOLO_POOL = Internal("celery.concurrency.solo", "TaskPool", "one task at a time of a batch in a solo worker that is told to end")
THREAD_POOL = Internal(
    "celery.concurrency.thread", "TaskPool", "a second look at tasks that waited in the queue of a pool of threads"
)
PREFORK_POOL = Internal("celery.concurrency.prefork", "TaskPool", "an early ack that leaves before its task begins")
THREAD_QUEUE = Internal(
    "concurrent.futures:ThreadPoolExecutor",
    "_work_queue",
    "letting the loop of a worker with threads sleep while tasks wait for these: it is woken by each task that begins",
)
#: What a new worker's control queue is declared with.
SETTINGS_DEFAULTS = Internal(
    "celery.app.utils:Settings", "defaults", "a second worker of the same node name: its start is refused"
)
MAILBOX_EXCLUSIVE = Internal("kombu.pidbox:Mailbox", "queue_exclusive", SETTINGS_DEFAULTS.without)

#: Set where the greenlet of the remote control is to end; another one, or none, where it has ended.
REMOTE_CONTROL_END = Internal(
    "celery.worker.pidbox:gPidbox",
    "_node_shutdown",
    "remote control of a gevent or eventlet worker after the loss of its connection alone",
)

#: The first version of Celery whose prefork pool remembers jobs that were accepted when it is flushed.
REMEMBERS = (5, 7)


def pool_remembers_jobs() -> bool:
    """Return whether `AsynPool.flush` keeps jobs that a child is known to have accepted."""
    return bool((celery.VERSION.major, celery.VERSION.minor) >= REMEMBERS)


def thread_queue_size(executor: Any) -> int:
    """Return how many calls wait for a thread of an executor; 0 where it does not tell."""
    queue = THREAD_QUEUE.of(executor)
    return 0 if queue is None else int(queue.qsize())


def job_cache(pool: Any) -> dict[int, Any] | None:
    """Return the jobs of a prefork pool; None for another pool."""
    processes = PROCESS_POOL.of(pool) if drops_waiting_jobs(pool) else None
    jobs: dict[int, Any] | None = None if processes is None else POOL_JOBS.of(processes)
    return jobs


def drops_waiting_jobs(pool: Any) -> bool:
    """Return whether a pool discards what it has not begun, as prefork does under the event loop."""
    flush = getattr(pool, "flush", None)
    return flush is not None and getattr(flush, "__func__", None) is not BasePool.flush


def terminates_jobs(pool: Any) -> bool:
    """Return whether a pool can end the task that it runs: only processes can be ended."""
    return hasattr(getattr(pool, PROCESS_POOL.name, None), "terminate_job")


def default_steps() -> list[Any] | None:
    """Return the bootsteps that every consumer has, a list to be replaced as a whole."""
    steps: list[Any] | None = DEFAULT_STEPS.of(Consumer.Blueprint)
    return steps


def set_default_steps(steps: list[Any]) -> None:
    """Replace the bootsteps that every consumer has, from the next one on."""
    DEFAULT_STEPS.set(Consumer.Blueprint, steps)


def schedulers(consumer: Any) -> list[str]:
    """Return the names of the methods by which a consumer has its loop call something."""
    if CALL_SOON.of(consumer) is None:
        return []
    return [name for name in (CALL_SOON.name, "call_soon_ack") if hasattr(consumer, name)]


def control_commands() -> dict[str, Any]:
    """Return the worker's remote control commands by name; changing the dict changes them."""
    panel = CONTROL_PANEL.of(control)
    commands: dict[str, Any] = {} if panel is None else CONTROL_COMMANDS.of(panel, {})
    return commands


def is_solo(pool: Any) -> bool:
    """Return whether a pool runs tasks in the worker's main thread."""
    kind = SOLO_POOL.of(solo)
    return kind is not None and isinstance(pool, kind)


def has_processes(pool: Any) -> bool:
    """Return whether a pool runs tasks in processes of its own, or whether that is not known."""
    kind = PREFORK_POOL.of(prefork)
    return kind is None or isinstance(pool, kind)


def has_threads(pool: Any) -> bool:
    """Return whether a pool runs tasks in threads, before which they may wait in its own queue."""
    kind = THREAD_POOL.of(thread)
    return kind is not None and isinstance(pool, kind)


def unwrapped(error: BaseException) -> BaseException:
    """Return the exception of a task, out of what billiard has made of it."""
    wrapper = EXCEPTION_WITH_TRACEBACK.of(einfo)
    inner: BaseException = error.exc if wrapper is not None and isinstance(error, wrapper) else error
    return inner


def runs_in_child(frame: Any) -> bool:
    """Return whether a frame is that of the function with which a pool process runs a task."""
    function = FAST_TRACE_TASK.of(trace)
    return function is not None and frame.f_code is function.__code__


def ends_of_unfinished() -> list[tuple[type, str]]:
    """Return the methods, by class and name, with which Celery ends tasks that are rejected and ignored."""
    info = TRACE_INFO.of(trace)
    return [(info, name) for name in ("handle_reject", "handle_ignore") if hasattr(info, name)]


def shutdown_check() -> Callable[[], None]:
    """Return what raises WorkerShutdown or WorkerTerminate where the worker was told to end."""
    check: Callable[[], None] = MAYBE_SHUTDOWN.of(state, lambda: None)
    return check


def share_control_queue(app: Any) -> None:
    """Have workers of one node name share their control queue, unless the app's settings say otherwise."""
    defaults = SETTINGS_DEFAULTS.of(app.conf)
    if defaults:
        defaults[-1]["control_queue_exclusive"] = False
        MAILBOX_EXCLUSIVE.set(app.control.mailbox, app.conf.control_queue_exclusive)


def remote_control_end(pidbox: Any) -> Any:
    """Return the event that ends the greenlet of the remote control; None where it is stopped."""
    return REMOTE_CONTROL_END.of(pidbox)


def restore_prefetch_count(consumer: Any) -> None:
    """Undo that Celery has lowered the prefetch count for the tasks that run since before a connection loss."""
    if not PREFETCH_RESTORED.of(consumer, True):
        PREFETCH_RESTORED.set(consumer, True)
        consumer.qos.value = consumer.initial_prefetch_count = consumer.max_prefetch_count
        consumer.qos.update()


def forget(request: Any) -> None:
    """Take a request that is not begun out of the worker's lists."""
    ready = TASK_READY.of(state)
    if ready is not None:
        ready(request)


def is_terminating() -> bool:
    """Return whether the worker was told to end without waiting for its tasks (a cold shutdown)."""
    flag = SHOULD_TERMINATE.of(state)
    # The exit status 0 is a reason, too (`celery.worker.state.maybe_shutdown`).
    return not (flag is None or flag is False)


def requests() -> dict[str, Any]:
    """Return the requests that the worker knows, by task id."""
    found: dict[str, Any] = REQUESTS.of(state, {})
    return found


def active_requests() -> set[Any]:
    """Return the requests whose tasks run."""
    found: set[Any] = ACTIVE_REQUESTS.of(state, set())
    return found
