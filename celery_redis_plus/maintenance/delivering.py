"""Which thread of this process delivers messages: what it publishes meanwhile, it cannot consume meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Collection


class Delivering:
    """The sessions whose messages are being delivered, by thread. A thread may deliver within a delivery."""

    def __init__(self) -> None:
        """Start with none."""
        self._sessions: dict[int, list[str]] = {}

    def begin(self, session: str) -> None:
        """Note that this thread delivers messages of `session`. No context manager: it would cost as much as a message."""
        thread = threading.get_ident()
        sessions = self._sessions.get(thread)
        if sessions is None:
            self._sessions[thread] = [session]
        else:
            sessions.append(session)

    def end(self) -> None:
        """End what `begin` began last in this thread."""
        thread = threading.get_ident()
        sessions = self._sessions[thread]
        sessions.pop()
        if not sessions:
            del self._sessions[thread]

    def all_here(self, sessions: Collection[str]) -> bool:
        """Return whether all of `sessions` are being delivered by the thread that asks, now."""
        return set(sessions) <= set(self._sessions.get(threading.get_ident(), ()))
