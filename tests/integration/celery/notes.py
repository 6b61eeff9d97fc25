"""What tasks noted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import redis


@dataclass
class Notes:
    """What tasks noted."""

    client: redis.Redis

    def started(self, name: str) -> list[str]:
        return [entry.decode() for entry in self.client.lrange(f"{name}:started", 0, -1)]

    def done(self, name: str) -> list[str]:
        return [entry.decode() for entry in self.client.lrange(f"{name}:done", 0, -1)]

    def go(self, name: str) -> None:
        """Let the waiting tasks end."""
        self.client.set(f"{name}:go", 1)

    def wait_for(self, name: str, count: int, timeout_s: float = PATIENCE_S, message: Any = "") -> Counter[str]:
        """Return what ran, when `count` different entries have."""
        wait_until(lambda: len(set(self.done(name))) >= count, timeout_s, lambda: f"{sorted(self.done(name))} {_text(message)}")
        return Counter(self.done(name))


def _text(message: Any) -> object:
    return message() if callable(message) else message
