"""Puts something of ours around a method of one of Celery's objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

#: Most nested callables that are searched for ours.
MAX_WRAPPERS = 20


def wrap(owner: Any, name: str, around: Callable[..., Any], *more: Any) -> None:
    """Have `owner` call `around` with its own method first, then `more`, then the call's arguments.

    Idempotent, also where another tool has wrapped the method since: ours is looked for inside.
    """
    present = getattr(owner, name)
    if all(not isinstance(layer, functools.partial) or layer.func is not around for layer in _layers(present)):
        setattr(owner, name, functools.partial(around, present, *more))


def _layers(present: Any) -> Iterator[Any]:
    """Return a callable and those that it wraps: partials, `functools.wraps`, wrapt's proxies, and plain closures."""
    waiting, seen = [present], 0
    while waiting and seen < MAX_WRAPPERS:
        layer = waiting.pop()
        seen += 1
        yield layer
        if isinstance(layer, functools.partial):
            waiting += [layer.func, *(inner for inner in layer.args if callable(inner))]
        elif hasattr(layer, "__wrapped__"):
            waiting.append(layer.__wrapped__)
        else:
            waiting += [cell.cell_contents for cell in getattr(layer, "__closure__", None) or () if _has_callable(cell)]


def _has_callable(cell: Any) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:
        # The name is not bound yet.
        return False
