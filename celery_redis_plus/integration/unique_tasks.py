"""`unique` and `debounce`: one task for the same arguments at a time, by the headers of `x-deduplication-id`."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from kombu.utils.json import dumps

from celery_redis_plus.broker.arguments.deduplication import (
    CONFLICT,
    DELAY,
    ID,
    KEEP,
    LONGEST_TTL_MS,
    MAX_WAIT,
    REPLACE,
    REPLACE_ONLY,
    SCOPE,
    TTL,
)
from celery_redis_plus.broker.arguments.retry_policy import time_ms
from celery_redis_plus.broker.publishing.tracking_request import TRACK
from celery_redis_plus.errors import InvalidArgument, OptionError
from celery_redis_plus.integration.task_options import bound_arguments, option_of

UNTIL_SUCCESS = "until-success"
#: Value of the option -> how long the server remembers the id.
SCOPES = {"while-queued": "until-claimed", "until-start": "until-started", UNTIL_SUCCESS: "until-acked"}
WINDOW = "window"
#: Milliseconds for which a task stands for its arguments, from when it is due: each set of arguments leaves 230 bytes that long.
KEPT_MS = 7 * 86_400_000
#: What `unique` is of a task with `debounce`: its retries neither wait nor are replaced.
DEBOUNCED = "until-start"
#: `max_wait` of a task that names none, as a multiple of its `debounce`.
DEFAULT_WAITS = 10
#: So often a publish begins anew because the task that it wants to replace has begun meanwhile, or waits in another queue.
MOST_ROUNDS = 20


def prepare(task: Any) -> None:
    """Have a task that has `debounce` be unique; idempotent.

    Raises:
        OptionError: one of `unique`, `unique_by`, `unique_conflict`, `debounce` and `max_wait` is not allowed.
    """
    if getattr(task, "debounce", None) is not None:
        if getattr(task, "unique", None) not in (None, DEBOUNCED):
            raise OptionError(f"task {task.name!r} has the options unique and debounce; allowed: one of them")
        task.unique = DEBOUNCED
    elif getattr(task, "max_wait", None) is not None:
        raise OptionError(f"option max_wait of task {task.name!r} without debounce; allowed with it")
    elif getattr(task, "unique", None) is None:
        raise OptionError(f"option unique_conflict of task {task.name!r} without unique; allowed with it")
    _headers_of(task)
    by = option_of(task, "unique_by")
    if by is None or callable(by):
        return
    if isinstance(by, str) or not isinstance(by, Iterable) or not all(isinstance(name, str) for name in by):
        raise OptionError(
            f"option unique_by of task {task.name!r} is {by!r:.100}; allowed: names of its arguments, or a function of them"
        )
    parameters = inspect.signature(task.run).parameters
    for name in by:
        if name not in parameters:
            raise OptionError(f"option unique_by of task {task.name!r} has {name!r}; allowed: {', '.join(parameters)}")


def unique_headers(task: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the headers with which a unique task is published, for these arguments.

    Raises:
        InvalidArgument: what `unique_by` makes of the arguments is not JSON.
    """
    args, kwargs, by = args or (), kwargs or {}, option_of(task, "unique_by")
    arguments = bound_arguments(task, args, kwargs)
    if arguments is None:
        arguments = {"args": list(args), "kwargs": dict(kwargs)}
    chosen: Any
    if by is None:
        chosen = arguments
    elif callable(by):
        chosen = by(*args, **kwargs)
    else:
        chosen = {name: arguments.get(name) for name in by}
    try:
        text = dumps(chosen, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"unique task {task.name!r} with arguments that are no JSON ({error}); allowed: the option unique_by, with names of "
            "arguments that are, or a function"
        ) from error
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return {ID: f"unique {task.name} {digest}", **_headers_of(task)}


def check_call(task: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a task replaces a waiting one.

    Raises:
        InvalidArgument: an option of the call contradicts that.
    """
    if getattr(task, "debounce", None) is None and getattr(task, "unique_conflict", None) != REPLACE:
        return False
    if TRACK in options:
        raise InvalidArgument(
            f"track is True for {task.name!r}, whose message may be replaced by a newer one; allowed for others"
        )
    for option in ("countdown", "eta"):
        if getattr(task, "debounce", None) is not None and options.get(option) is not None:
            raise InvalidArgument(
                f"{option} is {options[option]!r:.100} for {task.name!r}, whose debounce says when it runs; allowed: none"
            )
    return True


def send_replacing(
    send: Callable[..., Any], arguments: Any, options: dict[str, Any], told: dict[str, str]
) -> tuple[Any, str | None, bool]:
    """Send a task in place of the waiting one with its key, under the id of that one; or as the first one.

    The publish script says which task waits, and stores nothing. It is sent once more with that id, and stored if that task waits
    still: so all that were replaced have the result of the last one.

    Args:
        send: `Celery.send_task`.
        arguments: positional ones for it.
        options: named ones, with the headers of `unique_headers`.
        told: gets task ids from the transport, see `transport/publishing.py:duplicate_tasks`.

    Returns:
        The result; the id of the task that stands where this one is not sent, else None; whether it has replaced another one.
    """
    headers, standing = options["headers"], ""
    for _ in range(MOST_ROUNDS):
        if standing:
            again = {**options, "task_id": standing, "headers": {**headers, CONFLICT: REPLACE_ONLY}}
            result = send(*arguments, **again)
        else:
            result = send(*arguments, **options)
        other = told.pop(result.id, None)
        if other is None:
            return result, None, bool(standing)
        if other == standing:
            # It is in work, and its scope is not over.
            return result, standing, False
        # Empty where none waits any more.
        standing = other
    # It goes to several queues, in which different tasks wait.
    plain = {name: value for name, value in headers.items() if name not in {ID, CONFLICT}}
    return send(*arguments, **{**options, "headers": plain}), None, False


def _headers_of(task: Any) -> dict[str, Any]:
    return _scope_of(task) | _conflict_of(task)


def _conflict_of(task: Any) -> dict[str, Any]:
    """Return the headers that say what becomes of a waiting task with the same key."""
    conflict, debounce = getattr(task, "unique_conflict", None), getattr(task, "debounce", None)
    if conflict not in (None, KEEP, REPLACE):
        raise OptionError(f"option unique_conflict of task {task.name!r} is {conflict!r:.100}; allowed: {KEEP}, {REPLACE}")
    if debounce is None:
        return {CONFLICT: REPLACE} if conflict == REPLACE else {}
    if conflict == KEEP:
        raise OptionError(
            f"option unique_conflict of task {task.name!r} is {KEEP!r} with debounce, which replaces; allowed without"
        )
    delay = _milliseconds(task, "debounce", debounce, 1)
    given = getattr(task, "max_wait", None)
    max_wait = min(DEFAULT_WAITS * delay, LONGEST_TTL_MS) if given is None else _milliseconds(task, "max_wait", given, delay)
    return {CONFLICT: REPLACE, DELAY: delay, MAX_WAIT: max_wait}


def _milliseconds(task: Any, option: str, value: Any, least: int) -> int:
    """Return a time that a task's option has, in ms. Raises OptionError."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and least <= seconds * 1000 <= LONGEST_TTL_MS:
        return round(seconds * 1000)
    raise OptionError(
        f"option {option} of task {task.name!r} is {value!r:.100}; allowed: seconds, or a timedelta, from {least / 1000:g} s to "
        "a year"
    )


def _scope_of(task: Any) -> dict[str, Any]:
    unique = task.unique
    if isinstance(unique, str) and unique in SCOPES:
        return {SCOPE: SCOPES[unique], TTL: KEPT_MS}
    kind, _, window = unique.partition(" ") if isinstance(unique, str) else ("", "", "")
    try:
        milliseconds = time_ms(window) if kind == WINDOW else 0
    except ValueError:
        milliseconds = 0
    if not 1 <= milliseconds <= LONGEST_TTL_MS:
        raise OptionError(
            f"option unique of task {task.name!r} is {unique!r:.100}; allowed: {', '.join(SCOPES)}, and a time of at most a "
            f"year, such as '{WINDOW} 10m'"
        )
    return {SCOPE: "ttl", TTL: milliseconds}
