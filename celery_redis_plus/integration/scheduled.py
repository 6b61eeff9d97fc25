"""`celery inspect scheduled` and `query_task` with the tasks that the broker holds, beside those that the worker has itself."""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.serialization import prepare_accept_content
from kombu.utils.functional import maybe_list

from celery_redis_plus.broker.arguments.eta import time_of_ms
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.delayed import Delayed, Listing, list_delayed
from celery_redis_plus.errors import ShardUnreachable
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.stored_message import Claimed, UnreadableMessageError
from celery_redis_plus.transport.kombu_message import Message, payload_of
from celery_redis_plus.transport.transport import Transport

logger = logging.getLogger(__name__)

#: Most broker-held tasks that one answer lists, over all queues of the worker.
MAX_LISTED = 1000
#: What Celery's timer gives every task with an eta (`celery/worker/strategy.py`, 5.6 and 5.7).
TIMER_PRIORITY = 6
#: How far the broker's time of a task, in whole milliseconds, is from the one that its publisher asked for.
PRECISION = timedelta(milliseconds=1)


def install_inspect() -> None:
    """Let `inspect scheduled` and `query_task` of this process know broker-held tasks, where the broker is ours; idempotent."""
    known = worker_compat.control_commands()
    for command, extended in COMMANDS.items():
        handler = known.get(command)
        if handler is not None and not _is_extended(handler):
            known[command] = extended(handler)


def _is_extended(handler: Any) -> bool:
    """Return whether a control command is ours already, also where other tools have wrapped it since (`functools.wraps`)."""
    while not isinstance(handler, _Extended):
        if not hasattr(handler, "__wrapped__"):
            return False
        handler = handler.__wrapped__
    return True


class _Extended(ABC):
    """A control command of Celery that looks at what the broker holds, too."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        functools.update_wrapper(self, handler)
        self._handler = handler

    @abstractmethod
    def __call__(self, state: Any, **options: Any) -> Any:
        """Answer for one worker."""

    @staticmethod
    def _held(state: Any) -> list[dict[str, Any]]:
        """Return the delayed tasks of the worker's queues, those due next first."""
        consumer = state.consumer
        connection = consumer.connection
        if connection is None or not isinstance(connection.transport, Transport) or not consumer.task_consumer:
            return []
        queues = [queue.name for queue in consumer.task_consumer.queues]
        return held_by_broker(connection.transport, queues, app=state.app, hostname=state.hostname)


class _Scheduled(_Extended):
    """The control command `scheduled`."""

    def __call__(self, state: Any, **options: Any) -> list[dict[str, Any]]:
        """Answer for one worker: its timer's tasks, then the broker's."""
        return [*self._handler(state, **options), *self._held(state)]


class _QueryTask(_Extended):
    """The control command `query_task`."""

    def __call__(self, state: Any, **options: Any) -> dict[str, Any]:
        """Answer for one worker: the state of each of the tasks that it has or that its queues hold, and the task itself."""
        found: dict[str, Any] = self._handler(state, **options)
        missing = set(maybe_list(options["ids"])) - set(found)
        requests = (entry["request"] for entry in self._held(state)) if missing else ()
        return {**{request["id"]: ("scheduled", request) for request in requests if request["id"] in missing}, **found}


#: The control commands, and the old name of `scheduled`.
COMMANDS: dict[str, type[_Extended]] = {
    "scheduled": _Scheduled,
    "dump_schedule": _Scheduled,
    "query_task": _QueryTask,
}


def held_by_broker(
    transport: Transport, queues: Sequence[str], *, app: Any, hostname: str, limit: int = MAX_LISTED
) -> list[dict[str, Any]]:
    """Return the delayed tasks of `queues` in the shape of `inspect scheduled`, those due next first.

    A queue's share of the limit is the same for all; messages that are no tasks are left out. Where a queue has more than are
    listed, its entries have one key more than Celery's own, `broker`: the queue's name, and how many delayed messages it holds.
    A queue whose keys cannot be read is left out, and logged. Raises as `CommandConnection.call` does.
    """
    if not queues:
        return []
    share = max(limit // len(queues), 1)
    listings = {}
    failures = KeyFailures(logger, "has delayed tasks that cannot be listed")
    for queue in queues:
        # The tasks of the other shards are listed all the same.
        with failures.alone(queue), suppress(ShardUnreachable):
            session = transport.of_queue(queue).session
            listings[queue] = list_delayed(session.commands, session.keys, queue, share)
    for listing in listings.values():
        if listing.total > len(listing.messages):
            logger.info("inspect scheduled: queue %r holds %d delayed messages, %d are listed",
                        listing.queue, listing.total, len(listing.messages), extra={"queue": listing.queue})  # fmt: skip
    held = sorted((message for listing in listings.values() for message in listing.messages), key=attrgetter("eta_ms"))
    entries = (_entry(message, listings[message.queue], app, hostname) for message in held[:limit])
    return [entry for entry in entries if entry is not None]


def _entry(delayed: Delayed, listing: Listing, app: Any, hostname: str) -> dict[str, Any] | None:
    try:
        message = _message(delayed, app)
    except UnreadableMessageError as error:
        # It becomes a dead letter when it is due.
        logger.debug("inspect scheduled: message %s cannot be read: %r", delayed.tag, error.error, extra={"tag": delayed.tag})
        return None
    task = _task(message)
    if task is None:
        return None
    entry: dict[str, Any] = {
        "eta": _eta(delayed, task.get("eta"), app),
        "priority": TIMER_PRIORITY,
        "request": {
            "id": task.get("id"),
            "name": task.get("shadow") or task["task"],
            "args": task["args"],
            "kwargs": task["kwargs"],
            "type": task["task"],
            "hostname": hostname,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": message.delivery_info.get("exchange"),
                "routing_key": message.delivery_info.get("routing_key"),
                "priority": message.properties.get("priority"),
                "redelivered": message.delivery_info.get("redelivered", False),
            },
            "worker_pid": None,
        },
    }
    if listing.total > len(listing.messages):
        entry["broker"] = {"queue": listing.queue, "delayed": listing.total}
    return entry


def _message(delayed: Delayed, app: Any) -> Message:
    claimed = Claimed(delayed.tag, delayed.queue, 0, 0, redelivered=False, envelope=delayed.envelope, body=delayed.body)
    return Message(payload_of(claimed), accept=prepare_accept_content(app.conf.accept_content))


def _task(message: Message) -> dict[str, Any] | None:
    """Return a task's headers with its arguments; None where the message is no task.

    Arguments that cannot be read, or only by running code (pickle), or that are large, are shown as the publisher has
    abbreviated them, in `argsrepr` and `kwargsrepr`.
    """
    headers = message.headers
    body = _json_body(message)
    if "task" in headers:
        if isinstance(body, list) and len(body) == 3:
            return {**headers, "args": body[0], "kwargs": body[1]}
        return {**headers, "args": headers.get("argsrepr"), "kwargs": headers.get("kwargsrepr")}
    if isinstance(body, dict) and "task" in body:
        # Celery's first message protocol, `task_protocol = 1`.
        return {**body, "args": body.get("args"), "kwargs": body.get("kwargs")}
    return None


def _json_body(message: Message) -> Any:
    if message.content_type != "application/json" or not message.body:
        return None
    try:
        return message.payload
    except Exception as error:  # noqa: BLE001 - whatever somebody has published must not keep the others from being listed
        logger.debug("inspect scheduled: a body cannot be read: %r", error)
        return None


def _eta(delayed: Delayed, eta: Any, app: Any) -> str:
    """Return when the task is due, with the publisher's microseconds unless a reschedule or a retry has changed the time."""
    due = time_of_ms(delayed.eta_ms)
    if isinstance(eta, str):
        with suppress(ValueError, TypeError, AttributeError, OverflowError):
            asked = maybe_make_aware(maybe_iso8601(eta), app.timezone)
            if abs(asked - due) <= PRECISION:
                return str(asked.isoformat())
    return due.isoformat()
