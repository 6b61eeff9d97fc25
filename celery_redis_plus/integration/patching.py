"""Puts something of ours around a method of one of Celery's objects, or of all objects of a class."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

#: Most nested callables that are searched for ours.
MAX_WRAPPERS = 20


def wrap(owner: Any, name: str, around: Callable[..., Any], *more: Any) -> None:
    """Have `owner` call `around` with its own method first, then `more`, then the call's arguments.

    Where `owner` is a class, the call's arguments begin with the object. A method of its class is looked up at each call, since
    others may patch the class later. Idempotent, also where another tool has wrapped the method since: ours is looked for inside.
    """
    present = getattr(owner, name)
    if all(not isinstance(layer, functools.partial) or layer.func is not around for layer in _layers(present)):
        if not isinstance(owner, type) and name not in vars(owner):
            present = functools.partial(_call_method, owner, name)
        ours = functools.partial(around, present, *more)
        setattr(owner, name, _as_method(ours, present) if isinstance(owner, type) else ours)


def _call_method(owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call the method that the class of `owner` has now."""
    method = getattr(type(owner), name)
    return (method.__get__(owner) if hasattr(method, "__get__") else method)(*args, **kwargs)


def _as_method(ours: functools.partial[Any], present: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a class can have in place of `present`: a partial is not bound to an object."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    functools.update_wrapper(method, present)
    # `_layers` finds it there.
    method.__wrapped__ = ours  # type: ignore[attr-defined]
    return method


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
