"""The end of a worker: how long running tasks may go on, and that what they leave goes back before the process ends."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import time
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from celery import signals
from celery.platforms import EX_FAILURE

from celery_redis_plus.broker.consumers.active_tasks import inactive
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.integration.batched_tasks import batches_run
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.worker_compat import active_requests, has_threads, is_solo, is_terminating, terminates_jobs
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS
from celery_redis_plus.transport.kombu_message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.maintenance.service import MaintenanceService

logger = logging.getLogger(__name__)

#: Seconds for which the end waits until the server has what goes back and what was acked.
STOP_FLUSH_S = 5.0
#: Seconds for which a cold shutdown waits for the consumer's end, which a warm one has begun.
CLOSING_S = 2.0
#: Seconds between two looks whether a cold shutdown is over with its soft part.
LOOK_S = 0.05


class GracefulStop:
    """Ends a worker that goes on for longer than `graceful_timeout_s` after it was told to stop; a second signal does so at once.

    A prefork pool is ended by Celery's own cold shutdown (SIGQUIT), which terminates the processes of its tasks. Threads and
    greenlets cannot be ended; Celery would wait for them. So what they have goes back, and the process exits. A cold shutdown of
    threads and solo does so, too: Celery's ends greenlets, but of these it would wait for the running tasks.
    """

    def __init__(
        self, consumer: Any, services: Callable[[], Sequence[MaintenanceService]], graceful_timeout_s: float | None
    ) -> None:  # fmt: skip
        """Watch the worker of `consumer`; the `services` of its brokers know what it holds. None: tasks may go on for ever."""
        self._consumer = consumer
        self._services = services
        self._timeout_s = graceful_timeout_s
        self._lock = lock_of(self)
        self._told = 0
        if has_threads(consumer.pool) or is_solo(consumer.pool):
            wrap(consumer, "cancel_active_requests", self._cancel)
        if has_threads(consumer.pool):
            wrap(consumer.controller, "wait_for_soft_shutdown", self._begin_soft_shutdown)
        signals.worker_shutting_down.connect(self._on_signal, sender=consumer.hostname, weak=False)

    def disconnect(self) -> None:
        """Watch no more."""
        signals.worker_shutting_down.disconnect(self._on_signal, sender=self._consumer.hostname)

    def _on_signal(self, how: str = "", exitcode: int = 0, **_: Any) -> None:
        # In a signal handler of the main thread, which may hold any lock: a thread does what is to be done.
        self._told += 1
        if how == "Warm" and self._told <= 2 and self._timeout_s is not None:
            # Not `threading.Thread`, whose start waits for the thread: no greenlet may do that where the signal met the hub.
            _thread.start_new_thread(self._end, (self._told, self._timeout_s, exitcode))

    def _begin_soft_shutdown(self, wait: Callable[[], None]) -> None:
        _thread.start_new_thread(self._release_waiting, ())
        wait()

    def _release_waiting(self) -> None:
        """Return what waits for a thread of the pool: it would begin in the soft shutdown, and be ended with the process."""
        for service in self._services():
            unacked_messages = service.unacked_messages
            for unacked in chain.from_iterable(unacked_messages.by_queue().values()):
                message = unacked.alive
                if isinstance(message, Message) and message.waits_in_pool:
                    unacked_messages.release(unacked)

    def _cancel(self, cancel_active_requests: Callable[[], None]) -> None:
        """End the process behind a cold shutdown's attempt to end tasks: Celery tells of it only when they have ended."""
        cancel_active_requests()
        _thread.start_new_thread(self._end_cold, ())

    def _end_cold(self) -> None:
        # A soft shutdown gives the tasks some time before.
        while not is_terminating():
            time.sleep(LOOK_S)
        if (active_requests() or batches_run()) and self._lock.acquire(blocking=False):
            self._exit(EX_FAILURE)

    def _end(self, signal_number: int, timeout_s: float, exit_status: int) -> None:
        if signal_number == 1:
            time.sleep(timeout_s)
            logger.warning("tasks still run %g s after the worker was told to stop (graceful_timeout)", timeout_s)
        else:
            logger.warning("the worker was told to stop a second time")
        if not self._lock.acquire(blocking=False):
            return
        if terminates_jobs(self._consumer.pool):
            # In the midst of that, Celery's cold shutdown would find it half closed, and return nothing of what runs.
            self._consumer.blueprint.shutdown_complete.wait(CLOSING_S)
            os.kill(os.getpid(), signal.SIGQUIT)
            return
        self._exit(exit_status)

    def _exit(self, exit_status: int) -> NoReturn:
        """Return what the worker has, and end its process."""
        release_all(self._services())
        pidlock = getattr(self._consumer.controller, "pidlock", None)
        if pidlock:
            pidlock.release()
        logging.shutdown()
        os._exit(exit_status)


def release_all(services: Sequence[MaintenanceService]) -> None:
    """Return to the servers all that this process holds, since it ends, and wait until they know."""
    for service in services:
        service.unacked_messages.give_back()
    for service in services:
        if not service.flush(STOP_FLUSH_S):
            logger.warning(
                "the broker is unreachable: %d message(s) come back after the visibility timeout", len(service.unacked_messages)
            )


def release_waiting(consumer: Any, active_tasks: ActiveTasks) -> None:
    """Return what a worker that stops has claimed and not begun, while its pool goes on with what runs.

    Celery has dropped it by now (`Consumer.on_close`), and would return it with the connection's end, when all tasks have ended.
    """
    channel = getattr(consumer.task_consumer, "channel", None)
    for broker in getattr(channel, "brokers", ()) if active_tasks.is_stopping() else ():
        if broker.has_consumers and not broker.session.broken:
            waiting = inactive(broker.qos.unsettled(), active_tasks)
            # The loop takes no turn any more.
            broker.consumer_session.acknowledger.flush()
            with suppress(*CONNECTION_ERRORS):
                broker.qos.give_back(waiting)
