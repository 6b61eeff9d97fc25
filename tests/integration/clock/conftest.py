"""kombu connections on a server whose clock a test steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.transport.conftest import connect
from tests.support.clock import SteppingClock, scripts_with_steps

if TYPE_CHECKING:
    import redis

__all__ = ["connect"]


@pytest.fixture
def clock(redis_client: redis.Redis) -> Iterator[SteppingClock]:
    """The server's clock; ask for it before `connect`, so that connections get scripts that read it."""
    with scripts_with_steps():
        yield SteppingClock(redis_client)
