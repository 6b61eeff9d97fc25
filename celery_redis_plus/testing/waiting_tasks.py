"""What an app has enqueued and no worker has taken yet: `enqueued`, `assert_enqueued`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kombu.exceptions import KombuError
from kombu.serialization import dumps, loads, registry

from celery_redis_plus.broker.arguments.eta import eta_to_ms, time_of_ms
from celery_redis_plus.broker.queues.overview import list_queues
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.integration.app_broker import connected_shards
from celery_redis_plus.stored_message import TAG_TIME
from celery_redis_plus.testing.tested_app import app_of
from celery_redis_plus.transport.browsing import browse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery, Task

    from celery_redis_plus.transport.browsing import BrowsedMessage

#: By so much an eta may differ: a countdown counts from the call, the comparison from when the broker had the message.
TOLERANCE_S = 1.0


class NotDecoded:
    """Stands for arguments that cannot be read, and says why."""

    def __init__(self, error: Exception) -> None:
        """Show `error`."""
        self._error = error

    def __repr__(self) -> str:
        return f"<not decoded: {self._error}>"


@dataclass(frozen=True, slots=True)
class EnqueuedTask:
    """A task that waits in a queue.

    Attributes:
        name, id: of the task.
        args, kwargs: as the worker will get them.
        queue: where it waits.
        eta: when it is due; None: it is ready.
        countdown: how long before that it was published, in seconds; 0 where it is ready.
        message: as `celery_redis_plus.browse` shows it: headers, priority, properties.
    """

    name: str
    id: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    eta: datetime | None
    countdown: float
    message: BrowsedMessage

    def __str__(self) -> str:
        shown = ", ".join([*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())])
        when = "ready" if self.eta is None else f"due {self.eta:%Y-%m-%d %H:%M:%S} UTC, countdown {self.countdown:g}"
        return f"{self.name}({shown})  in queue {self.queue!r}, {when}"


def enqueued(task: Task | str | None = None, *, app: Celery | None = None) -> list[EnqueuedTask]:
    """Return the tasks that wait in the queues, ready or delayed: those of `task`, or all. It takes none of them away.

    Args:
        task: a task, or its name; None: all tasks.
        app: the app; None: the task's, or the current one.

    Raises:
        OptionError: the app's broker is none of ours.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    name = task if task is None or isinstance(task, str) else task.name
    return [found for found in _waiting(app_of(app or getattr(task, "app", None))) if name in {None, found.name}]


def assert_enqueued(
    task: Task | str, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, queue: str | None = None,
    eta: datetime | timedelta | float | None = None, app: Celery | None = None,
) -> EnqueuedTask:  # fmt: skip
    """Return the first task that waits in a queue and is what the arguments say; what they do not say may be anything.

    Args:
        task: a task, or its name.
        args: all its positional arguments.
        kwargs: all its keyword arguments.
        queue: the name of the queue in which it waits.
        eta: when it is due, a time, or how long after its publish (timedelta, or seconds), to within a second; 0: it is ready.
        app: the app; None: the task's, or the current one.

    Raises:
        AssertionError: there is none; the text lists the tasks that wait.
        OptionError: the app's broker is none of ours.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    used = app_of(app or getattr(task, "app", None))
    waiting = list(_waiting(used))
    name = task if isinstance(task, str) else task.name
    wanted = {"args": args, "kwargs": kwargs, "queue": queue, "eta": eta}
    for found in waiting:
        if found.name == name and _fits(used, found, wanted):
            return found
    conditions = ", ".join(f"{argument}={value!r}" for argument, value in wanted.items() if value is not None)
    there = "".join(f"\n  {found}" for found in waiting) or " none"
    raise AssertionError(f"no task {name} waits{f' with {conditions}' if conditions else ''}. Tasks that wait:{there}")


def _fits(app: Celery, found: EnqueuedTask, wanted: Mapping[str, Any]) -> bool:
    args, kwargs, queue, eta = wanted.values()
    return (
        (args is None or found.args == _as_sent(found, list(args)))
        and (kwargs is None or found.kwargs == _as_sent(found, dict(kwargs)))
        and queue in {None, found.queue}
        and (eta is None or _is_due(app, found, eta))
    )


def _is_due(app: Celery, found: EnqueuedTask, eta: datetime | timedelta | float) -> bool:
    if isinstance(eta, datetime):
        due_s = eta_to_ms(eta, naive_is_utc=bool(app.conf.enable_utc), tz=app.timezone) / 1000
        return found.eta is not None and abs(found.eta.timestamp() - due_s) <= TOLERANCE_S
    seconds = eta.total_seconds() if isinstance(eta, timedelta) else eta
    return found.eta is None if not seconds else abs(found.countdown - seconds) <= TOLERANCE_S


def _as_sent(found: EnqueuedTask, value: Any) -> Any:
    """Return a value as a worker gets it: JSON makes lists of tuples. What cannot be sent so is equal to nothing."""
    serializer = registry.type_to_name.get(found.message.content_type)
    try:
        content_type, encoding, data = dumps(value, serializer=serializer)
        return loads(data, content_type, encoding, accept={content_type})
    except (KombuError, ValueError, TypeError) as error:
        return NotDecoded(error)


def _waiting(app: Celery) -> Iterator[EnqueuedTask]:
    with connected_shards(app) as shards:
        queues = sorted({queue for _, session in shards for queue in list_queues(session.commands, session.keys)})
    for queue in queues:
        for state in ("ready", "delayed"):
            for message in browse(queue, connection=app, state=state):
                if message.task is not None:
                    yield _enqueued(app, message)


def _enqueued(app: Celery, message: BrowsedMessage) -> EnqueuedTask:
    try:
        args, kwargs, _ = message.decode(accept=app.conf.accept_content)
    except (CeleryRedisPlusError, KombuError, ValueError, TypeError) as error:
        # A task that is asked for by its name alone is there all the same.
        args, kwargs = [NotDecoded(error)], {}
    due_ms = message.time_ms if message.state == "delayed" else None
    # A tag begins with the time of the publish.
    published_ms = int(message.tag[TAG_TIME], 16)
    return EnqueuedTask(
        name=str(message.task),
        id=str(message.task_id),
        args=list(args),
        kwargs=dict(kwargs),
        queue=message.queue,
        eta=None if due_ms is None else time_of_ms(due_ms).astimezone(UTC),
        countdown=0.0 if due_ms is None else (due_ms - published_ms) / 1000,
        message=message,
    )
