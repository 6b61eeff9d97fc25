"""Who is logged in: a random id for each login, kept in the server process until its end."""

from __future__ import annotations

import secrets
import time
from typing import Final

from celery_redis_plus.connection.forks import lock_of

#: Seconds after which a user logs in again.
SESSION_S: Final = 12 * 3600.0
#: Logins at once; of more, the oldest ends.
MAX_SESSIONS: Final = 1_000


class Sessions:
    """The logins that are open; thread-safe."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        #: When each ends, by the monotonic clock, the oldest first.
        self._ends_at: dict[str, float] = {}

    def open(self) -> str:
        """Return the id of a new login."""
        id_ = secrets.token_urlsafe(24)
        with self._lock:
            self._ends_at[id_] = time.monotonic() + SESSION_S
            while len(self._ends_at) > MAX_SESSIONS:
                del self._ends_at[next(iter(self._ends_at))]
        return id_

    def has(self, id_: str) -> bool:
        """Return whether a login of that id is open. An id that is wrong is found by its hash, so its time tells nothing."""
        with self._lock:
            ends_at = self._ends_at.get(id_)
        return ends_at is not None and time.monotonic() < ends_at

    def close(self, id_: str) -> None:
        """End a login."""
        with self._lock:
            self._ends_at.pop(id_, None)
