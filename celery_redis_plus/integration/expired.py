"""Revokes tasks that expired in the broker, as Celery revokes those that it finds expired when it begins them.

The broker never delivers an expired message, so no worker would tell those who wait for the result. Any worker whose app has
the task does it, by Celery's own `Request.revoked` (5.6, 5.7): result, chord, event `task-revoked`, signal `task_revoked`.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.worker import state
from kombu.serialization import prepare_accept_content
from kombu.utils.imports import symbol_by_name
from redis.exceptions import RedisError

from celery_redis_plus.broker.arguments.eta import eta_to_ms
from celery_redis_plus.broker.queues.expired_tasks import ExpiredTask, ExpiredTasks
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import CeleryRedisPlusError, InvalidEta
from celery_redis_plus.stored_message import TAG_TIME
from celery_redis_plus.transport.kombu_message import Message, load

if TYPE_CHECKING:
    from celery_redis_plus.consumer.broker_connection import BrokerConnection

logger = logging.getLogger(__name__)

#: Milliseconds for which other workers are woken for a task that this app does not have; later their regular check finds it.
OFFERED_MS = 3_000
#: Seconds between two such calls of this worker: workers without the task must not keep each other busy. The first is at once.
OFFER_PAUSE_S = 0.25


class ExpiredTaskRevoker:
    """Revokes the expired tasks of a worker's app. It has a thread only while there are some: result backends may be slow."""

    def __init__(self, consumer: Any, session: BrokerConnection) -> None:
        """Revoke for the worker of `consumer`, without keeping it alive; `session` names the broker."""
        self._consumer = weakref.ref(consumer)
        self._connector, self._keys, self._options = session.connector, session.keys, session.options
        self._lock = lock_of(self)
        self._runs = False
        self._again = False
        #: Whether another worker has still to be woken; and when one was, on the monotonic clock.
        self._passes_on = False
        self._passed_on_at = 0.0

    def wake(self) -> None:
        """Look for expired tasks, in a thread of its own."""
        with self._lock:
            self._again = True
            if self._runs:
                return
            self._runs = True
        threading.Thread(target=self._work, name="celery-redis-plus-expired", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._again:
                    self._runs = False
                    return
                self._again = False
            commands = CommandConnection(self._connector, "expired", timeout=self._options.socket_timeout)
            try:
                self._revoke_all(ExpiredTasks(commands, self._keys))
            except (RedisError, OSError, CeleryRedisPlusError) as error:
                logger.warning("expired tasks are not revoked yet (%s); trying again", error)
            except Exception:
                logger.exception("expired tasks are not revoked yet; this is a defect of celery-redis-plus, please report it")
            finally:
                commands.close()

    def _revoke_all(self, tasks: ExpiredTasks) -> None:
        """Revoke the tasks that this worker's app has, and wake other workers for the rest."""
        while batch := tasks.take(self._known_names(tasks)):
            done = []
            for task in batch:
                if _revoke(self._consumer(), task):
                    done.append(task)
                if self._again:
                    # The wake-up that this worker took may have been meant for another one, which must not wait for our result
                    # backend.
                    self._known_names(tasks)
            tasks.done(done)
        if self._passes_on:
            time.sleep(max(0.0, self._passed_on_at + OFFER_PAUSE_S - time.monotonic()))
            self._pass_on(tasks)

    def _known_names(self, tasks: ExpiredTasks) -> list[str]:
        """Return the names of the waiting tasks that this worker's app has; wake another worker where there are others."""
        with self._lock:
            self._again = False
        waiting, consumer = tasks.names(), self._consumer()
        known = [] if consumer is None else [name for name in waiting if name in consumer.app.tasks]
        self._passes_on |= any(age_ms < OFFERED_MS for name, age_ms in waiting.items() if name not in known)
        if self._passes_on and time.monotonic() - self._passed_on_at >= OFFER_PAUSE_S:
            self._pass_on(tasks)
        return known

    def _pass_on(self, tasks: ExpiredTasks) -> None:
        self._passes_on, self._passed_on_at = False, time.monotonic()
        tasks.notify()


def _is_over(expired: ExpiredTask, headers: dict[str, Any], properties: dict[str, Any]) -> bool:
    """Return whether the task's own time was over: its `expires`, or the `expiration` that Celery makes of it (5.6, 5.7).

    The two differ: `expires` is a moment by the publisher's clock, and `expiration` counts on the server.
    """
    if "expiration" in properties and _deliverable_ms(expired.tag, headers) + int(properties["expiration"]) <= expired.died_ms:
        return True
    try:
        return eta_to_ms(headers.get("expires"), naive_is_utc=True) <= expired.died_ms
    except InvalidEta:
        return False


def _deliverable_ms(tag: str, headers: dict[str, Any]) -> int:
    """Return when a task became deliverable: published by the time in its tag, or later, at its eta."""
    published_ms = int(tag[TAG_TIME], 16)
    try:
        return max(published_ms, eta_to_ms(headers.get("eta"), naive_is_utc=True))
    except InvalidEta:
        return published_ms


def _revoke(consumer: Any, expired: ExpiredTask) -> bool:
    """Have Celery revoke a task; return False where that failed, or the worker has ended, and it has to be tried again."""
    if consumer is None:
        return False
    payload = load(expired.envelope)
    if not _is_over(expired, payload["headers"], payload["properties"]):
        # A TTL of its queue was over, and not its own time: it goes on to a dead-letter exchange.
        return True
    task = consumer.app.tasks[payload["headers"]["task"]]
    payload["body"] = expired.body
    payload["properties"] = {"delivery_info": {}, **payload["properties"], "delivery_tag": expired.tag}
    try:
        request = symbol_by_name(task.Request)(
            Message(payload, accept=prepare_accept_content(consumer.app.conf.accept_content)),
            on_ack=_settled,
            on_reject=_settled,
            hostname=consumer.hostname,
            eventer=consumer.event_dispatcher,
            connection_errors=consumer.connection_errors,
            app=consumer.app,
            task=task,
        )
        # By this machine's clock it may not have expired yet.
        request.expires = datetime.now(UTC) - timedelta(seconds=1)
        known = request.id in state.revoked
        request.revoked()
        if not known:
            # A dead letter that is replayed shall run.
            state.revoked.discard(request.id)
    except Exception:
        logger.exception(
            "task %s[%s] expired, and is not revoked yet",
            payload["headers"].get("task"),
            payload["headers"].get("id"),
            extra={"task_name": payload["headers"].get("task"), "task_id": payload["headers"].get("id")},
        )
        return False
    return True


def _settled(*_: Any, **__: Any) -> None:
    """Do nothing: the broker has ended the message."""
