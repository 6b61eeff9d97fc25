"""Keeps commands that run for long alive while the broker is away: one line at the loss, one at the return."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from celery_redis_plus.admin.formatting import span
from celery_redis_plus.cli.asking import complain
from celery_redis_plus.cli.exit_status import UNREACHABLE
from celery_redis_plus.cli.main import status_of_error

#: Seconds until the next try: the first, twice as long each time, and the longest.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 5.0


class Outage:
    """A context manager around each try: one that meets a broker which is away ends without an error, and `lasts` is true.

    Other errors are raised: a refusal does not pass by itself.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._error: BaseException | None = None
        #: Seconds to wait before the next try.
        self.pause_s = FIRST_PAUSE_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            self._end()
            return False
        if not isinstance(error, Exception) or status_of_error(error) != UNREACHABLE:
            return False
        if self._since is None:
            self._since = time.monotonic()
            complain(f"{error}; it tries again")
        else:
            self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)
        self._error = error
        return True

    @property
    def lasts(self) -> bool:
        """Whether the last try met a broker that is away."""
        return self._since is not None

    def __str__(self) -> str:
        return f"no answer since {span(self._seconds())}: {self._error}"

    def _end(self) -> None:
        if self.lasts:
            complain(f"the broker answers again, after {span(self._seconds())}")
        self._since, self._error, self.pause_s = None, None, FIRST_PAUSE_S

    def _seconds(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since
