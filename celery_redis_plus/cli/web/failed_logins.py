"""Bounds how often a wrong password or token may be tried."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from celery_redis_plus.connection.forks import lock_of

#: Failed logins of one address after which it waits, and the seconds in which they count.
MOST: Final = 10
WITHIN_S: Final = 60.0
#: Addresses that are remembered; of more, the one that failed first.
MAX_ADDRESSES: Final = 10_000


class FailedLogins:
    """The failed logins of the last minute, by the address that they came from; thread-safe."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        self._of: OrderedDict[str, list[float]] = OrderedDict()

    def note(self, address: str) -> None:
        """Count one more."""
        with self._lock:
            recent = self._recent(address)
            self._of[address] = [*recent[-MOST:], time.monotonic()]
            while len(self._of) > MAX_ADDRESSES:
                self._of.popitem(last=False)

    def take_back(self, address: str) -> None:
        """Count one less: what was noted before it was looked at has succeeded."""
        with self._lock:
            recent = self._recent(address)[:-1]
            if recent:
                self._of[address] = recent
            else:
                self._of.pop(address, None)

    def wait_s(self, address: str) -> float:
        """Return for how many seconds a login from there is refused; 0: it is not."""
        with self._lock:
            recent = self._recent(address)
        return 0.0 if len(recent) < MOST else max(0.0, recent[-MOST] + WITHIN_S - time.monotonic())

    def _recent(self, address: str) -> list[float]:
        since = time.monotonic() - WITHIN_S
        return [at for at in self._of.get(address, ()) if at > since]
