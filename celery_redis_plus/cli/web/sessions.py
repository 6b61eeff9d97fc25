"""Who is logged in: a random id for each login, kept in the server process until its end."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from celery_redis_plus.connection.forks import lock_of

if TYPE_CHECKING:
    from celery_redis_plus.cli.web.users import User

#: Seconds after which a user logs in again.
SESSION_S: Final = 12 * 3600.0
#: Logins at once; of more, the oldest ends.
MAX_SESSIONS: Final = 1_000


class Sessions:
    """The logins that are open; thread-safe."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        #: Whose each is, and when it ends, by the monotonic clock, the oldest first.
        self._open: dict[str, tuple[User, float]] = {}

    def open(self, user: User) -> str:
        """Return the id of a new login."""
        id_ = secrets.token_urlsafe(24)
        with self._lock:
            self._open[id_] = user, time.monotonic() + SESSION_S
            while len(self._open) > MAX_SESSIONS:
                del self._open[next(iter(self._open))]
        return id_

    def user(self, id_: str) -> User | None:
        """Return whose login of that id is open; None: there is none. An id is found by its hash, so its time tells nothing."""
        with self._lock:
            found = self._open.get(id_)
        return found[0] if found is not None and time.monotonic() < found[1] else None

    def close(self, id_: str) -> None:
        """End a login."""
        with self._lock:
            self._open.pop(id_, None)
