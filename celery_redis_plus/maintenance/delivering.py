"""Which thread of this process delivers messages: what it publishes meanwhile, it cannot consume meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Delivering:
    """The sessions whose messages are being delivered, by thread. A thread may deliver within a delivery."""

    def __init__(self) -> None:
        """Start with none."""
        self._sessions: dict[int, list[str]] = {}

    @contextmanager
    def of(self, session: str) -> Iterator[None]:
        """Note that this thread delivers messages of `session`."""
        self.begin(session)
        try:
            yield
        finally:
            self.end()

    def begin(self, session: str) -> None:
        """Do what `of` does at its beginning; a context manager a message would cost as much as a message."""
        thread = threading.get_ident()
        sessions = self._sessions.get(thread)
        if sessions is None:
            self._sessions[thread] = [session]
        else:
            sessions.append(session)

    def end(self) -> None:
        """Do what `of` does at its end."""
        thread = threading.get_ident()
        sessions = self._sessions[thread]
        sessions.pop()
        if not sessions:
            del self._sessions[thread]

    def all_here(self, sessions: Collection[str]) -> bool:
        """Return whether all of `sessions` are being delivered by the thread that asks, now."""
        return set(sessions) <= set(self._sessions.get(threading.get_ident(), ()))
