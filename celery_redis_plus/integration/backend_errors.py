"""Tells the errors of a task's result backend, which may be a Redis server as well, from those of the broker."""

from __future__ import annotations

import traceback
from typing import Any


def is_of_backend(error: BaseException, backend: Any) -> bool:
    """Return whether `error` was raised by the result backend `backend`, or below it."""
    modules = {kind.__module__ for kind in type(backend).__mro__} - {"builtins"}
    return any(frame.f_globals.get("__name__") in modules for frame, _ in traceback.walk_tb(error.__traceback__))
