"""Fixtures that hand out servers, and the guard that real-server tests really ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.servers import Server, new_server, session_server
from tests.support.workers import Worker

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.demo.server import EmbeddedServer

SERVER_FIXTURES = {"server", "own_server", "broker_url", "redis_client", "start_server", "start_worker"}
#: Databases that a test may use on the shared server; all are emptied before it runs.
DATABASES = (0, 1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server that all tests of the session share."""
    with session_server() as shared:
        yield shared


@pytest.fixture
def broker_url(server: Server) -> str:
    """`redisplus://…`: the address of an empty database on the shared server."""
    for db in DATABASES:
        with server.client(db) as client:
            client.flushdb()
    return server.url()


@pytest.fixture
def redis_client(server: Server, broker_url: str) -> Iterator[redis.Redis]:
    """A redis-py client for the database that `broker_url` names."""
    with server.client() as client:
        yield client


@pytest.fixture
def start_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Start further servers: `start_server({"maxmemory": "5mb"})`."""
    with ExitStack() as stack:

        def start(config: dict[str, str] | None = None) -> EmbeddedServer:
            return stack.enter_context(new_server(config))

        yield start


@pytest.fixture
def own_server(start_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server of this test's own, to be killed, frozen and restarted."""
    return start_server()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers: `start_worker(broker=broker_url, pool="solo")`; all are stopped warmly at the end."""
    with ExitStack() as stack:

        def start(app: str = "tests.support.apps", **options: Any) -> Worker:
            return stack.enter_context(Worker(app, tmp_path, **options))

        yield start


# ---- the guard


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--min-server-tests",
        type=int,
        default=0,
        metavar="N",
        help="fail unless at least N tests passed on a real server",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        ServerTestGuard(config.getoption("--min-server-tests")), "server-test-guard"
    )


class ServerTestGuard:
    """Counts the tests that passed on a real server."""

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum
        self.passed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
                item.add_marker("server")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and "server" in report.keywords:
            self.passed += 1

    @property
    def too_few(self) -> bool:
        return self.passed < self.minimum

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.too_few and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = f"{self.passed} of the passed tests ran on a real server"
        if self.too_few:
            terminalreporter.write_line(f"{line}: fewer than --min-server-tests={self.minimum}", red=True)
        elif self.passed:
            terminalreporter.write_line(line)
