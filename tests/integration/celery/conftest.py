"""Workers and publishers of one kind of app, and what their tasks noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kombu import pools

from tests.integration.celery.app import CONFIG_VARIABLE, JOURNAL_VARIABLE, SETUP_VARIABLE, URL_VARIABLE, make_app
from tests.integration.celery.notes import Notes
from tests.support.apps import JOURNAL_DB
from tests.support.tested_app import app

if TYPE_CHECKING:
    from celery import Celery

    from tests.support.servers import Server
    from tests.support.workers import Worker

__all__ = ["app"]


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
    for made in apps:
        made.close()
    # kombu's pools belong to the process, and outlive the apps that use them.
    pools.reset()


@pytest.fixture
def celery_worker(server: Server, broker_url: str, start_worker: Callable[..., Worker]) -> Callable[..., Worker]:
    """Start a worker of such an app: `celery_worker("configured", pool="solo", config={"task_acks_late": True})`."""

    def start(
        setup: str = "alone",
        url: str = broker_url,
        *,
        app: str = "tests.integration.celery.app",
        config: dict[str, Any] | None = None,
        pool: str = "solo",
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Worker:
        return start_worker(
            app,
            pool=pool,
            env={
                SETUP_VARIABLE: setup,
                URL_VARIABLE: url,
                CONFIG_VARIABLE: repr(config or {}),
                JOURNAL_VARIABLE: server.url(JOURNAL_DB, "redis"),
                **(env or {}),
            },
            **options,
        )

    return start
