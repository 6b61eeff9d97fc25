"""Workers and publishers of one kind of app, and what their tasks noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import pools

from tests.integration.celery.app import CONFIG_VARIABLE, JOURNAL_VARIABLE, SETUP_VARIABLE, URL_VARIABLE, make_app
from tests.support.apps import JOURNAL_DB
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.workers import Worker


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

    def wait_for(self, name: str, count: int, timeout_s: float = 15.0, message: Any = "") -> Counter[str]:
        """Return what ran, when `count` different entries have."""
        wait_until(lambda: len(set(self.done(name))) >= count, timeout_s, lambda: f"{sorted(self.done(name))} {_text(message)}")
        return Counter(self.done(name))


def _text(message: Any) -> object:
    return message() if callable(message) else message


@pytest.fixture
def notes(server: Server, broker_url: str, start_worker: Callable[..., Worker]) -> Iterator[Notes]:
    with server.client(JOURNAL_DB) as client:
        found = Notes(client)
        yield found
        # What still waits after a failure shall not hold up the worker's end.
        for key in client.keys("*:started"):
            found.go(key.decode().removesuffix(":started"))


@pytest.fixture
def celery_app(broker_url: str) -> Iterator[Callable[..., Celery]]:
    """Make a publisher's app: `celery_app()`, `celery_app("configured", "redis://…", task_acks_late=True)`."""
    apps = []

    def make(setup: str = "alone", url: str = broker_url, **config: Any) -> Celery:
        apps.append(make_app(setup, url, config))
        return apps[-1]

    yield make
    for app in apps:
        app.close()
    # kombu's pools belong to the process, and outlive the apps that use them.
    pools.reset()


@pytest.fixture
def celery_worker(server: Server, broker_url: str, start_worker: Callable[..., Worker]) -> Callable[..., Worker]:
    """Start a worker of such an app: `celery_worker("configured", pool="solo", config={"task_acks_late": True})`."""

    def start(
        setup: str = "alone", url: str = broker_url, *, config: dict[str, Any] | None = None, pool: str = "solo", **options: Any
    ) -> Worker:
        return start_worker(
            "tests.integration.celery.app",
            pool=pool,
            env={
                SETUP_VARIABLE: setup,
                URL_VARIABLE: url,
                CONFIG_VARIABLE: repr(config or {}),
                JOURNAL_VARIABLE: server.url(JOURNAL_DB, "redis"),
            },
            options=("--without-mingle", "--without-gossip", *options.pop("options", ())),
            **options,
        )

    return start
