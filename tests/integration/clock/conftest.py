"""A server whose clock a test steps: the broker's rooms and kombu connections on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from tests.integration.broker.conftest import Broker, make_broker
from tests.integration.transport.conftest import connect
from tests.support.clock import SteppingClock, scripts_with_steps

if TYPE_CHECKING:
    import redis

__all__ = ["connect"]

VISIBILITY_S = 3.0


@pytest.fixture
def clock(redis_client: redis.Redis) -> Iterator[SteppingClock]:
    """The server's clock; ask for it before `connect`, so that connections get scripts that read it."""
    with scripts_with_steps():
        yield SteppingClock(redis_client)


@pytest.fixture
def broker(clock: SteppingClock, redis_client: redis.Redis) -> Iterator[Broker]:
    """The broker's rooms; what a test leaves on the server is consistent."""
    broker = make_broker(redis_client)
    yield broker
    broker.check()
    broker.commands.close()


def sweeper_of(broker: Broker, name: str, visibility_s: float = VISIBILITY_S) -> Sweeper:
    """Return a sweeper of the queue `q`, a process of that name."""
    limits = SweepLimits(visibility_s, None, 5, 1000.0)
    sweeper = Sweeper(broker.commands, broker.keys, ConsumedQueues(), name=name, limits=limits, forward=lambda _: None)
    sweeper.watch(["q"])
    return sweeper
