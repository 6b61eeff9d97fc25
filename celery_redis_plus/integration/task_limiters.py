"""A task's limiter: the option `rate_limit` with a limiter's name in it, `limit_key` and `limit_cost`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

from celery_redis_plus.broker.arguments.limiters import LIMITER, Limiter
from celery_redis_plus.errors import InvalidArgument, OptionError
from celery_redis_plus.integration.app_connections import connections_of
from celery_redis_plus.integration.task_options import bound_arguments, option_of

#: What a task has in place of `rate_limit`, which Celery's workers read themselves.
LIMITER_OF_TASK: Final = "crp_limiter"


def limiter_named(app: Any, text: str) -> Limiter:
    """Return the limiter in a text: one with its rule, or the name of one that `configure_app` was given.

    Raises:
        InvalidArgument: it is none.
    """
    if ":" in text:
        return Limiter.parse(text)
    connections = connections_of(app)
    rules = {} if connections is None else connections.limiters
    if text not in rules:
        raise InvalidArgument(
            f"limiter {text!r:.100} has no rule; allowed is one with it, such as '{text}:100/s burst=20', and those that "
            f"configure_app has as 'limiters': {', '.join(rules) or 'none'}"
        )
    return Limiter.parse(f"{text}:{rules[text]}")


def prepare_limiter(task: Any) -> None:
    """Give a task its limiter, where its `rate_limit` names one; Celery's own rates stay. Idempotent.

    Raises:
        OptionError: naming the option, its value, and what is allowed.
    """
    rate = task.rate_limit
    if not isinstance(rate, str) or not _is_ours(task, rate):
        _check_unused(task)
        return
    try:
        limiter = limiter_named(task.app, rate)
        cost = option_of(task, "limit_cost")
        if cost is not None and not callable(cost):
            limiter = limiter.costing(cost)
    except InvalidArgument as error:
        raise OptionError(f"option rate_limit of task {task.name!r}: {error}") from error
    key = option_of(task, "limit_key")
    if key is not None and not callable(key):
        names = (key,) if isinstance(key, str) else key
        parameters = inspect.signature(task.run).parameters
        if not isinstance(names, Iterable) or not all(name in parameters for name in names):
            raise OptionError(
                f"option limit_key of task {task.name!r} is {key!r:.100}; allowed: names of its arguments "
                f"({', '.join(parameters)}), or a function of them"
            )
    # Celery's consumers cannot read ours; with None they limit nothing themselves.
    task.rate_limit = None
    setattr(task, LIMITER_OF_TASK, limiter)


def limiter_header(task: Any, args: Any, kwargs: Any) -> dict[str, str]:
    """Return the header of a task with a limiter, for these arguments.

    Raises:
        InvalidArgument: what `limit_key` or `limit_cost` makes of the arguments is not allowed.
    """
    limiter: Limiter = getattr(task, LIMITER_OF_TASK)
    arguments, named = tuple(args or ()), dict(kwargs or {})
    cost, key = option_of(task, "limit_cost"), option_of(task, "limit_key")
    if callable(cost):
        limiter = limiter.costing(cost(*arguments, **named))
    if callable(key):
        found = key(*arguments, **named)
        limiter = limiter if found is None else limiter.keyed(found)
    elif key is not None:
        bound = bound_arguments(task, arguments, named)
        values = [(named if bound is None else bound).get(name) for name in ((key,) if isinstance(key, str) else key)]
        if values != [None]:
            limiter = limiter.keyed(str(values[0]) if len(values) == 1 else "/".join(map(_part, values)))
    return {LIMITER: str(limiter)}


def _part(value: Any) -> str:
    """Return an argument as a part of a key, in which `/` parts them."""
    return str(value).replace("%", "%25").replace("/", "%2F")


def _is_ours(task: Any, rate: str) -> bool:
    """Return whether a rate names a limiter: Celery reads numbers, and numbers with a unit."""
    connections = connections_of(task.app)
    return ":" in rate or (connections is not None and rate in connections.limiters)


def _check_unused(task: Any) -> None:
    if getattr(task, LIMITER_OF_TASK, None) is not None:
        return
    for option in ("limit_key", "limit_cost"):
        if option_of(task, option) is not None:
            raise OptionError(
                f"option {option} of task {task.name!r} without a limiter; allowed with one in rate_limit, such as "
                "'stripe:100/s burst=20'"
            )
