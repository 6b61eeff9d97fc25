"""`unique`: one task for the same arguments at a time, by the headers of `x-deduplication-id`."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kombu.utils.json import dumps

from celery_redis_plus.broker.arguments.deduplication import ID, LONGEST_TTL_MS, SCOPE, TTL
from celery_redis_plus.broker.arguments.retry_policy import time_ms
from celery_redis_plus.errors import InvalidArgument, OptionError

#: Value of the option -> how long the server remembers the id.
SCOPES = {"while-queued": "until-claimed", "until-start": "until-started", "until-success": "until-acked"}
WINDOW = "window"


def check_unique(task: Any) -> None:
    """Raise OptionError where a task's `unique` or `unique_by` is not allowed."""
    _headers_of(task)
    by = _unique_by(task)
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
    arguments, by = _arguments_of(task, args or (), kwargs or {}), _unique_by(task)
    chosen: Any
    if by is None:
        chosen = arguments
    elif callable(by):
        chosen = by(*(args or ()), **(kwargs or {}))
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


def _unique_by(task: Any) -> Any:
    """Return the option as it was given: a function is no method of the task."""
    given = inspect.getattr_static(task, "unique_by", None)
    return given.__func__ if isinstance(given, staticmethod) else given


def _arguments_of(task: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names: `f(1)` and `f(order=1)` are the same, and so is a default that is left out."""
    run: Callable[..., Any] = task.run
    try:
        bound = inspect.signature(run).bind(*args, **kwargs)
    except (TypeError, ValueError):
        # Celery tells that the arguments are wrong, or its task wants it so (`typing=False`).
        return {"args": list(args), "kwargs": dict(kwargs)}
    bound.apply_defaults()
    return dict(bound.arguments)


def _headers_of(task: Any) -> dict[str, Any]:
    unique = task.unique
    if unique in SCOPES:
        return {SCOPE: SCOPES[unique], TTL: LONGEST_TTL_MS}
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
