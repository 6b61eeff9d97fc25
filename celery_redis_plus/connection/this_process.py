"""The id of this process, kept: every delivery and every publish compares it a few times, and asking is a system call."""

from __future__ import annotations

import os


class _ThisProcess:
    """`pid` is right in a forked child, too, from its first line on."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.look()

    def look(self) -> None:
        self.pid = os.getpid()


this_process = _ThisProcess()
os.register_at_fork(after_in_child=this_process.look)
