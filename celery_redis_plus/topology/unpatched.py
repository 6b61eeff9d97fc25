"""The system's own calls, which gevent and eventlet leave alone wherever they have replaced those of the standard modules.

A greenlet may not wait where the event loop itself runs, nor where the call cannot block: eventlet's `os.read` waits for input
before it reads, even from a descriptor that is set not to block (eventlet 0.40, `green/os.py`).
"""

from __future__ import annotations

import importlib.util
from posix import close, pipe, read, set_blocking, write
from types import ModuleType

__all__ = ["close", "is_readable", "pipe", "read", "set_blocking", "write"]


def _fresh(name: str) -> ModuleType:
    """Return a copy of a module of the interpreter in which nothing is replaced. eventlet takes `poll` out of `select`."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - a module of the interpreter
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_select = _fresh("select")


def is_readable(descriptor: int) -> bool:
    """Return, without waiting, whether a read would return at once: input, the end of it, or a failure. False is a wait."""
    poller = _select.poll()
    poller.register(descriptor, _select.POLLIN)
    return bool(poller.poll(0))
