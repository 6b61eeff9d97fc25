"""Connections with three lanes on one server: a lane is a prefix, so most of it needs no cluster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from celery_redis_plus.connection.lanes import lane_of
from tests.integration.celery.conftest import celery_app, celery_worker, notes
from tests.integration.transport.conftest import connect, loop

if TYPE_CHECKING:
    from collections.abc import Callable

    import kombu

    from celery_redis_plus.transport.lane_channel import LaneChannel

__all__ = ["celery_app", "celery_worker", "connect", "loop", "notes"]

LANES = 3


def named(lane: int, what: str = "q", lanes: int = LANES) -> str:
    """Return a name in a lane, which begins with `what`."""
    return next(name for number in range(100) if lane_of(name := f"{what}{number}", lanes) == lane)


@pytest.fixture
def connect_lanes(connect: Callable[..., kombu.Connection]) -> Callable[..., kombu.Connection]:
    """Open connections with three lanes: `connect_lanes(visibility_timeout=3)`."""
    return partial(connect, cluster_lanes=LANES)


@pytest.fixture
def connection(connect_lanes: Any) -> kombu.Connection:
    return connect_lanes()


@pytest.fixture
def channel(connection: kombu.Connection) -> LaneChannel:
    return connection.channel()
