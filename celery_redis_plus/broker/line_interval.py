"""Keeps the log readable where one thing happens with each message."""

from __future__ import annotations

from celery_redis_plus import clock


class LineInterval:
    """Lets the first line about a subject through at once, and then one in a while, which says how often it happened."""

    def __init__(self, interval_s: float) -> None:
        """Let one line about a subject through in `interval_s` seconds."""
        self._interval_s = interval_s
        #: Subject -> when its last line was written, on `clock`, and what has happened since.
        self._written: dict[str, tuple[float, int]] = {}

    def count(self, subject: str, count: int = 1) -> int:
        """Note that something happened `count` times; return what the line stands for that is due now, 0 where none is."""
        now = clock.now_s()
        written_at, since = self._written.get(subject, (0.0, 0))
        if written_at and now - written_at < self._interval_s:
            self._written[subject] = (written_at, since + count)
            return 0
        self._written[subject] = (now, 0)
        return since + count
