"""kombu connections, and queues with limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.transport.conftest import channel, connect, connection, inbox
from tests.support.inbox import declare

__all__ = ["channel", "connect", "connection", "inbox"]


@pytest.fixture
def bounded(channel: Any) -> Callable[..., str]:
    """Declare a queue with limits: `bounded(max_length=3, overflow="block")`; return its name."""

    def make(name: str = "q", **limits: Any) -> str:
        declare(channel, name, arguments={f"x-{key.replace('_', '-')}": value for key, value in limits.items()})
        return name

    return make


@pytest.fixture
def record(redis_client: Any) -> Callable[[str], dict[str, str]]:
    """Return a queue's record."""

    def read(queue: str = "q") -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in redis_client.hgetall(f"meta:{{{queue}}}").items()}

    return read
