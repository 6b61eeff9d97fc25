"""Wakes a thread, or an event loop, that waits in `poll`, from any other thread. A pipe, so that it works on every POSIX."""

from __future__ import annotations

from contextlib import suppress

from celery_redis_plus.connection import forks, unpatched


class _Pipe:
    """Both ends of a pipe that never blocks. What they stand for may be closed behind our back: see `unpatched.identity`."""

    __slots__ = ("_identities", "reader", "writer")

    def __init__(self) -> None:
        self.reader, self.writer = unpatched.pipe()
        for end in (self.reader, self.writer):
            unpatched.set_blocking(end, False)
        self._identities = {end: unpatched.identity(end) for end in (self.reader, self.writer)}

    def has(self, end: int) -> bool:
        """Whether `end` is still an end of this pipe."""
        return unpatched.identity(end) == self._identities[end]

    def close(self) -> None:
        for end in (self.reader, self.writer):
            if self.has(end):
                unpatched.close(end)


class Waker:
    """A file descriptor that is readable after `wake` and until `clear`. The pipe is opened by the first `fileno`.

    Without locks: a signal handler wakes, and a fork may come at any moment.
    """

    def __init__(self) -> None:
        """Open nothing yet."""
        self._pipe: _Pipe | None = None
        self._awake = False
        self._closed = False
        forks.on_fork_in_child(self)

    def forked(self) -> None:
        """Let go of the parent's pipe, in a child: a shared one would wake the parent, and eat the parent's wake-ups."""
        self._drop()
        self._awake = False

    def fileno(self) -> int:
        """Return the readable end; -1 after `close`. For one thread only."""
        pipe = self._pipe
        if pipe is None or not pipe.has(pipe.reader) or not pipe.has(pipe.writer):
            if self._closed:
                return -1
            self._drop()
            self._pipe = pipe = _Pipe()
            if self._awake:
                self._write(pipe)
        return pipe.reader

    def wake(self) -> None:
        """Make it readable. May be called from any thread, from a signal handler, and after `close`."""
        if not self._awake:
            # Before the pipe is looked at: one that is opened meanwhile begins readable.
            self._awake = True
            pipe = self._pipe
            if pipe is not None:
                self._write(pipe)

    def clear(self) -> None:
        """Make it unreadable again; a `wake` from now on counts anew. For one thread only, which looks around afterwards.

        Reads first, and always: a `wake` between the read and the flag is one that the caller is about to see, and one that
        wrote after the flag was down leaves the pipe readable without it.
        """
        pipe = self._pipe
        if pipe is not None and pipe.has(pipe.reader):
            with suppress(OSError):
                unpatched.read(pipe.reader, 64)
        self._awake = False

    def close(self) -> None:
        """Close both ends."""
        self._closed = True
        self._drop()

    def _write(self, pipe: _Pipe) -> None:
        if pipe.has(pipe.writer):
            with suppress(OSError):
                unpatched.write(pipe.writer, b"!")

    def _drop(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()

    def __del__(self) -> None:
        """Close what a connection that was never closed has left, as redis-py does with its sockets."""
        with suppress(AttributeError, TypeError, OSError):
            self._drop()
