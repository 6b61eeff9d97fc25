"""Options of a task that its author has given, and the arguments of a call that they name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any


def option_of(task: Any, name: str) -> Any:
    """Return an option as it was given: a function is no method of the task. None without it."""
    given = inspect.getattr_static(task, name, None)
    return given.__func__ if isinstance(given, staticmethod) else given


def bound_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments by their names: `f(1)` and `f(order=1)` are the same, and so is a default that is left out.

    None where they do not fit: Celery tells that, or its task wants it so (`typing=False`).
    """
    try:
        bound = inspect.signature(task.run).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    return dict(bound.arguments)
