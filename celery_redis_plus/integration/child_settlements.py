"""What the tasks in the processes of a prefork pool say about their messages: a pipe from them to the worker's main process.

The main process holds the messages, so it settles them. A child writes before it reports how its task has ended, and the main
process reads before it acts on that report: so it never settles a message behind its task's back.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from celery_redis_plus.connection.forks import renewed

#: Bytes of a read.
READ_BYTES = 65536


class ChildSettlements:
    """One pipe for all pools of a process; children inherit it by fork."""

    def __init__(self, settle: Callable[..., object]) -> None:
        """Call `settle(**what)`, in the main process, with what `send` is given in a child."""
        self._settle = settle
        self._pid = os.getpid()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        # A thread that waits for it finds that all is settled which was written before.
        self._lock = renewed(self, "_lock", threading.RLock)
        self._rest = b""

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that reads; else one of its children."""
        return self._pid == os.getpid()

    def fileno(self) -> int:
        """Return what is readable when a child has written."""
        return self._read

    def send(self, **what: Any) -> None:
        """Tell the main process, from a child; texts of up to 500 bytes. Returns when it is written, as a whole (PIPE_BUF)."""
        os.write(self._write, json.dumps(what).encode() + b"\n")

    def read_settlements(self) -> None:
        """Settle what children have written so far, in the main process. Never raises."""
        with self._lock:
            for line in self._lines():
                self._settle(**json.loads(line))

    def _lines(self) -> Iterator[bytes]:
        while True:
            try:
                part = os.read(self._read, READ_BYTES)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + part).split(b"\n")
            yield from lines
