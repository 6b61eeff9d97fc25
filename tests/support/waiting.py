"""Waits for conditions, so that no test sleeps and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.machine_time import machine_time

T = TypeVar("T")

#: Seconds for which a test waits where it promises no time: a busy machine holds a process up for longer than one expects.
PATIENCE_S = 30.0


def wait_until(
    predicate: Callable[[], T | None],
    timeout_s: float = PATIENCE_S,
    message: str | Callable[[], object] = "",
    *,
    interval_s: float = 0.01,
) -> T:
    """Call `predicate` until it returns something true, and return that.

    Raises:
        TimeoutError: it stayed false for `timeout_s`, by `machine_time`; the error has `message` (called if callable) and the
            last result.
    """
    deadline = machine_time() + timeout_s
    while True:
        result = predicate()
        if result:
            return result
        if machine_time() >= deadline:
            text = message() if callable(message) else message or getattr(predicate, "__name__", "condition")
            raise TimeoutError(f"not within {timeout_s} s: {text} (last result: {result!r})")
        time.sleep(interval_s)
