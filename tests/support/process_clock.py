"""A clock in place of this machine's (`celery_redis_plus.clock`): it stands until a test steps it."""

from __future__ import annotations


class ProcessClock:
    """Replaces `clock.now_s`: `monkeypatch.setattr(clock, "now_s", ProcessClock())`."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
