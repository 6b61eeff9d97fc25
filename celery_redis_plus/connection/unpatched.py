"""The system's own calls, which gevent and eventlet leave alone wherever they have replaced those of the standard modules.

eventlet's `os.read` waits for input before it reads, even from a descriptor that is set not to block (eventlet 0.40,
`green/os.py`), and neither library lets a signal handler wait.
"""

from __future__ import annotations

import _thread
import importlib.util
from collections.abc import Callable
from posix import close, fstat, pipe, read, set_blocking, write
from types import ModuleType

__all__ = [
    "close", "identity", "is_readable", "outcome_of", "pipe", "read", "set_blocking", "threads_are_greenlets", "write",
]  # fmt: skip


def _fresh(name: str) -> ModuleType:
    """Return a copy of a module of the interpreter in which nothing is replaced. eventlet takes `poll` out of `select`."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - a module of the interpreter
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_select, _real_threads = _fresh("select"), _fresh("_thread")


def is_readable(descriptor: int) -> bool:
    """Return, without waiting, whether a read would return at once: with input, the end of it, or a failure."""
    poller = _select.poll()
    poller.register(descriptor, _select.POLLIN)
    return bool(poller.poll(0))


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return what tells an open file, pipe or socket from any other one: device and inode; None where nothing is open.

    A program that turns into a daemon closes all descriptors, and the numbers come back for other files. An object that still
    keeps such a number must neither write to it nor close it.
    """
    try:
        found = fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def threads_are_greenlets() -> bool:
    """Return whether gevent or eventlet has replaced threads: then none of them runs while another one computes."""
    return _thread.start_new_thread.__module__ != "_thread"


def outcome_of(function: Callable[[], object]) -> object:
    """Call `function` in a thread of its own, and return what it returns, or the exception that it raises.

    No signal's handler runs there, and no caller has left little stack.

    Raises:
        RuntimeError: the system starts no more threads.
    """
    outcomes: list[object] = []
    done = _real_threads.allocate_lock()
    done.acquire()

    def call() -> None:
        try:
            outcomes.append(function())
        except BaseException as error:  # noqa: BLE001 - it is returned
            outcomes.append(error)
        finally:
            done.release()

    _real_threads.start_new_thread(call, ())
    done.acquire()
    return outcomes[0]
