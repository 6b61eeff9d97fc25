"""Pytest fixtures on the embedded server: name this module in the `pytest_plugins` of a `conftest.py`.

It is no plugin by entry point: that would be loaded in every test run of every project beside which this package is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_redis_plus.integration.app_broker import load_app
from celery_redis_plus.testing.draining import running_worker
from celery_redis_plus.testing.server import EmbeddedServer
from celery_redis_plus.testing.tested_app import pointed_at

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The database of the results; that of the broker is 0.
RESULTS_DB = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting `redisplus_app`."""
    parser.addini("redisplus_app", "the Celery app under test, as for `celery -A`: shop.celery:app", default="")


@pytest.fixture(scope="session")
def redisplus_server() -> Iterator[EmbeddedServer]:
    """The embedded server of this test run; each process of pytest-xdist starts its own.

    Raises:
        ServerStartError: the extra `testing` is not installed, has no server for this platform, or the server did not start.
    """
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def redisplus_url(redisplus_server: EmbeddedServer) -> str:
    """The broker URL of database 0 of the embedded server, emptied before the test; so is database 1, for results."""
    for db in (0, RESULTS_DB):
        with redisplus_server.client(db) as client:
            client.flushdb()
    return redisplus_server.url()


@pytest.fixture
def redisplus_app(redisplus_server: EmbeddedServer, redisplus_url: str, pytestconfig: pytest.Config) -> Iterator[Celery]:
    """The app of the pytest setting `redisplus_app`, else a new one, as the current app on the embedded server.

    After the test it has its own settings again.
    """
    name = pytestconfig.getini("redisplus_app")
    app = load_app(name) if name else Celery("redisplus_app", set_as_current=False)
    with pointed_at(app, redisplus_url, redisplus_server.url(RESULTS_DB, "redis")):
        yield app


@pytest.fixture
def redisplus_worker_options() -> dict[str, Any]:
    """Options of the worker of `redisplus_worker`, such as `pool`, `concurrency` and `queues`; override it to set some."""
    return {}


@pytest.fixture
def redisplus_worker(redisplus_app: Celery, redisplus_worker_options: dict[str, Any]) -> Iterator[Any]:
    """A worker of `redisplus_app` in a thread, with the pool solo; it ends after the test."""
    with running_worker(redisplus_app, **redisplus_worker_options) as worker:
        yield worker
