"""Wakes a thread, or an event loop, that waits in `poll`, from any other thread. A pipe, so that it works on every POSIX."""

from __future__ import annotations

import os
from contextlib import suppress

from celery_redis_plus.topology import forks


class Waker:
    """A file descriptor that is readable after `wake` and until `clear`."""

    def __init__(self) -> None:
        """Open the pipe."""
        self._open()
        forks.watch(self)

    def _open(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._awake = False

    def forked(self) -> None:
        """Have a pipe of its own, in a child: one that it shared would wake the parent, and eat the parent's wake-ups."""
        if self._reader >= 0:
            self.close()
            self._open()

    def fileno(self) -> int:
        """Return the readable end."""
        return self._reader

    @property
    def awake(self) -> bool:
        """Whether it is readable."""
        return self._awake

    def wake(self) -> None:
        """Make it readable. May be called from any thread, and after `close`."""
        if not self._awake and self._writer >= 0:
            self._awake = True
            with suppress(OSError):
                os.write(self._writer, b"!")

    def clear(self) -> None:
        """Make it unreadable again; a `wake` from now on counts anew. For one thread only, which looks around afterwards.

        Reads first, and always: a `wake` between the read and the flag is one that the caller is about to see, and one that
        wrote after the flag was down leaves the pipe readable without it.
        """
        if self._reader >= 0:
            with suppress(OSError):
                os.read(self._reader, 64)
            self._awake = False

    def close(self) -> None:
        """Close both ends."""
        reader, writer, self._reader, self._writer = self._reader, self._writer, -1, -1
        for descriptor in (reader, writer):
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        """Close what a connection that nobody closed has left, as redis-py does with its sockets."""
        with suppress(AttributeError, OSError):
            self.close()
