"""Lets a forked child let go of its parent's descriptors at once.

A child that never uses them would keep them open: a server does not see the end of a killed parent's connections while a child
of its pool still has them, and goes on waking a consumer that is gone.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from celery_redis_plus.topology.this_process import this_process


class Forkable(Protocol):
    """Something with descriptors of one process."""

    def forked(self) -> None:
        """Let go of the parent's, in the child. Takes no lock: the parent may have held it."""


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(item: Forkable) -> None:
    """Call `item.forked()` in every child that this process forks while `item` lives."""
    _watched.add(item)


def _in_child() -> None:
    # Hooks run in the order of their registration, and those who are called here ask whether they are in another process.
    this_process.look()
    for item in list(_watched):
        item.forked()


os.register_at_fork(after_in_child=_in_child)
