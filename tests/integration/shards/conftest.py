"""Connections with three shards on one server: a shard is a prefix, so most of it needs no cluster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.shard_layout import shard_of, shard_prefixes
from celery_redis_plus.errors import ServerUnreachable
from tests.integration.celery.conftest import celery_app, celery_worker, notes
from tests.integration.transport.conftest import connect, loop

if TYPE_CHECKING:
    from collections.abc import Callable

    import kombu

    from celery_redis_plus.shards.channel import ShardsChannel

__all__ = ["celery_app", "celery_worker", "connect", "loop", "notes"]

SHARDS = 3


def named(shard: int, what: str = "q", shards: int = SHARDS) -> str:
    """Return a name in a shard, which begins with `what`."""
    return next(name for number in range(100) if shard_of(name := f"{what}{number}", shards) == shard)


def refuse_shard(number: int) -> Callable[..., Any]:
    """Return what takes the place of `Connector.open` while a shard cannot be reached."""
    real, prefix = Connector.open, shard_prefixes("", SHARDS)[number]

    def open_other(self: Connector, purpose: str, *, timeout: float | None) -> Any:
        if self.options.global_keyprefix == prefix:
            raise ServerUnreachable("no connection to this shard")
        return real(self, purpose, timeout=timeout)

    return open_other


@pytest.fixture
def connect_shards(connect: Callable[..., kombu.Connection]) -> Callable[..., kombu.Connection]:
    """Open connections with three shards: `connect_shards(visibility_timeout=3)`."""
    return partial(connect, shards=SHARDS)


@pytest.fixture
def connection(connect_shards: Any) -> kombu.Connection:
    return connect_shards()


@pytest.fixture
def channel(connection: kombu.Connection) -> ShardsChannel:
    return connection.channel()
