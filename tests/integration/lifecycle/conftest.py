"""Apps and workers whose queues are archived."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kombu import pools

from celery_redis_plus.keys import Keys
from tests.integration.lifecycle.app import CONFIG_VARIABLE, URL_VARIABLE, make_app
from tests.support.events import paths_of
from tests.support.tested_app import app

if TYPE_CHECKING:
    import redis
    from celery import Celery

    from celery_redis_plus.events import Event
    from tests.support.workers import Worker

__all__ = ["app"]


@pytest.fixture
def life_app(broker_url: str) -> Iterator[Callable[..., Celery]]:
    """Make a publisher's app: `life_app(ack_policy="ack_after", settings={"task_acks_late": True})`."""
    apps = []

    def make(url: str = broker_url, *, settings: dict[str, Any] | None = None, **configured: Any) -> Celery:
        apps.append(make_app(url, {"event_log": True, **configured}, settings or {}))
        return apps[-1]

    yield make
    for made in apps:
        made.close()
    pools.reset()


@pytest.fixture
def life_worker(broker_url: str, start_worker: Callable[..., Worker]) -> Callable[..., Worker]:
    """Start a worker of such an app."""

    def start(
        url: str = broker_url, *, settings: dict[str, Any] | None = None, pool: str = "prefork", options: tuple[str, ...] = (),
        configured: dict[str, Any] | None = None, env: dict[str, str] | None = None, **how: Any,
    ) -> Worker:  # fmt: skip
        return start_worker(
            "tests.integration.lifecycle.app",
            pool=pool,
            env={
                URL_VARIABLE: url,
                CONFIG_VARIABLE: repr(({"event_log": True, **(configured or {})}, settings or {})),
                **(env or {}),
            },
            options=options,
            **how,
        )

    return start


@pytest.fixture
def paths(redis_client: redis.Redis) -> Callable[[str], dict[str, list[Event]]]:
    """Return the events of a queue's messages, by message id."""
    return lambda queue: paths_of(redis_client, Keys(), queue)
