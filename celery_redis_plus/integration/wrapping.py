"""Puts something of ours around a method of one of Celery's objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, around: Callable[..., Any], *more: Any) -> None:
    """Have `owner` call `around` with its own method first, then `more`, then the call's arguments; idempotent."""
    present = getattr(owner, name)
    if not (isinstance(present, functools.partial) and present.func is around):
        setattr(owner, name, functools.partial(around, present, *more))
