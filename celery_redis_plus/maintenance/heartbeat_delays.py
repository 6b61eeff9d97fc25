"""Warns of heartbeats that come late: other processes take over what this one holds after the visibility timeout."""

from __future__ import annotations

import logging

from celery_redis_plus.connection.unpatched import threads_are_greenlets

logger = logging.getLogger(__name__)


class HeartbeatDelays:
    """The warnings of one process on one broker."""

    def __init__(self, visibility_timeout_s: float) -> None:
        """Name `visibility_timeout_s`, in seconds, in the warnings."""
        self._visibility_timeout_s = visibility_timeout_s
        #: How often heartbeats came later than planned by more than an interval.
        self.count = 0
        self._warned = self._warned_of_greenlets = False

    def warn_while(self, late_s: float) -> None:
        """Warn, once for each delay, that heartbeats are due since `late_s` seconds; 0: they are not."""
        if late_s and not self._warned:
            logger.warning(
                "heartbeats are %.1f s late, and other processes take over what this one holds after %.1f s: the thread for "
                "heartbeats gets no time, or waits for the broker",
                late_s, self._visibility_timeout_s,
            )  # fmt: skip
        self._warned = bool(late_s)
        if late_s:
            self._warn_of_greenlets()

    def warn_after(self, late_s: float, longest_task: str, took_s: float) -> None:
        """Count heartbeats that came `late_s` seconds late, and warn; `longest_task` took `took_s` since the last ones."""
        self.count += 1
        logger.warning(
            "heartbeats came %.1f s late (%d times by now); other processes take over what this one holds after %.1f s. The "
            "longest task since the last one: %s, %.1f s",
            late_s, self.count, self._visibility_timeout_s, longest_task or "none", took_s,
        )  # fmt: skip
        self._warn_of_greenlets()

    def _warn_of_greenlets(self) -> None:
        """Say, once a process, why a thread got no time that is no thread."""
        if threads_are_greenlets() and not self._warned_of_greenlets:
            self._warned_of_greenlets = True
            logger.warning(
                "gevent or eventlet makes the thread for heartbeats a greenlet, which waits while another greenlet computes. "
                "What to do: make visibility_timeout (%g s) longer than the longest computation, or use another pool for it",
                self._visibility_timeout_s,
            )
