"""Lets a forked child let go of its parent's descriptors at once, and gives it locks that no thread of its parent holds.

A child that never uses them would keep them open: a server does not see the end of a killed parent's connections while a child
of its pool still has them, and goes on waking a consumer that is gone.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol, TypeVar

logger = logging.getLogger(__name__)


class _ThisProcess:
    """Keeps the id of this process: each delivery and publish compares it a few times, and `os.getpid` is a system call."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Ask for the id anew, as the first thing in a forked child."""
        self.pid = os.getpid()


this_process = _ThisProcess()


class Forkable(Protocol):
    """Something with descriptors of one process."""

    def forked(self) -> None:
        """Let go of the parent's, in the child. Takes no lock: the parent may have held it."""


Made = TypeVar("Made")

#: Owner -> name of an attribute -> what makes it.
_renewed: weakref.WeakKeyDictionary[object, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def renewed(owner: object, name: str, make: Callable[[], Made]) -> Made:
    """Return what `make` makes, for the attribute `name` of `owner`; in every forked child the attribute is made anew.

    For what another thread may hold at the fork: `self._lock = renewed(self, "_lock", threading.Lock)`. That thread does not
    exist in the child, and would never let go of it there.
    """
    _renewed.setdefault(owner, {})[name] = make
    return make()


def lock_of(owner: object, name: str = "_lock") -> threading.Lock:
    """Return a new lock for the attribute `name` of `owner`, which every forked child renews."""
    return renewed(owner, name, threading.Lock)


class fork_safe_property(cached_property[Made]):  # noqa: N801 - a decorator, named as the one that it is
    """A `functools.cached_property` that another thread may be making at a fork.

    Python 3.11 has one lock for the property of all instances, and makes it under that lock.
    """

    def __init__(self, make: Callable[[Any], Made]) -> None:
        """Keep what `make` returns."""
        super().__init__(make)
        if hasattr(self, "lock"):
            renewed(self, "lock", threading.RLock)


_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()


def on_fork_in_child(item: Forkable) -> None:
    """Call `item.forked()` in every child that this process forks while `item` lives."""
    _forkable.add(item)


def _in_child() -> None:
    # Hooks run in the order of their registration, and those who are called here ask whether they are in another process.
    this_process.refresh()
    for owner, attributes in list(_renewed.items()):
        for name, make in attributes.items():
            setattr(owner, name, make())
    for item in list(_forkable):
        try:
            item.forked()
        except Exception:
            # The others let go of theirs all the same: open copies would hide the parent's death.
            logger.exception("%r was not told of a fork; this is a defect of celery-redis-plus, please report it", item)


#: Held while a thread loads the modules of a first consumer, for some 0.3 s. A fork waits for that: a module that another thread
#: is importing at a fork can never be imported in the child. Python 3.11 does not renew the locks of modules there.
loading = threading.RLock()

os.register_at_fork(before=loading.acquire, after_in_parent=loading.release, after_in_child=loading.release)
os.register_at_fork(after_in_child=_in_child)
