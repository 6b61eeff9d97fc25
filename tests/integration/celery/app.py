"""The app of these tests' workers, named in every way that an app can name its broker.

`celery -A tests.integration.celery.app`; the variables say how. Unlike `tests.support.apps`, it takes a plain URL.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from asyncio import CancelledError
from typing import Any

import redis
from celery import Celery, shared_task
from celery.exceptions import Reject

URL_VARIABLE = "CRP_TEST_URL_FORM"
SETUP_VARIABLE = "CRP_TEST_SETUP"
JOURNAL_VARIABLE = "CRP_TEST_JOURNAL"
CONFIG_VARIABLE = "CRP_TEST_CONFIG"


def journal() -> redis.Redis:
    return redis.Redis.from_url(os.environ[JOURNAL_VARIABLE])


@shared_task(name="c.note")
def note(name: str, entry: str, sleep_s: float = 0.0) -> None:
    """Note the start and the end of a piece of work."""
    with journal() as client:
        client.rpush(f"{name}:started", entry)
        time.sleep(sleep_s)
        client.rpush(f"{name}:done", entry)


@shared_task(name="c.wait")
def wait(name: str, entry: str, limit_s: float = 60.0) -> None:
    """Note the start, wait for `NAME:go`, note the end."""
    with journal() as client:
        client.rpush(f"{name}:started", entry)
        deadline = time.monotonic() + limit_s
        while not client.exists(f"{name}:go") and time.monotonic() < deadline:
            time.sleep(0.02)
        client.rpush(f"{name}:done", entry)


@shared_task(name="c.leave")
def leave(name: str, entry: str) -> None:
    """Note the start, and raise what is no Exception, as `sys.exit` and a cancelled coroutine do."""
    with journal() as client:
        client.rpush(f"{name}:started", entry)
    raise CancelledError


@shared_task(name="c.die")
def die(name: str, entry: str) -> None:
    """Kill the process that runs it, until `NAME:go` exists; then note the end."""
    with journal() as client:
        client.rpush(f"{name}:started", entry)
        if not client.exists(f"{name}:go"):
            os.kill(os.getpid(), signal.SIGKILL)
        client.rpush(f"{name}:done", entry)


@shared_task(name="c.die_with_all")
def die_with_all(name: str, entry: str) -> None:
    """Note the start, and kill the whole worker: the process that runs it, its parent and its siblings."""
    with journal() as client:
        client.rpush(f"{name}:started", entry)
    os.killpg(0, signal.SIGKILL)


@shared_task(name="c.not_now")
def not_now(name: str, entry: str) -> str:
    """Note the start, and ask for another delivery until `NAME:go` exists."""
    with journal() as client:
        client.rpush(f"{name}:started", entry)
        if not client.exists(f"{name}:go"):
            raise Reject(requeue=True)
        client.rpush(f"{name}:done", entry)


@shared_task(name="c.never")
def never(name: str, entry: str) -> None:
    """Note the start, and ask that there is no other delivery."""
    with journal() as client:
        client.rpush(f"{name}:started", entry)
    raise Reject(requeue=False)


@shared_task(name="c.keep_garbage")
def keep_garbage() -> None:
    """Switch the collector off in the process that runs it, as a busy worker whose objects are old may not run it for hours."""
    gc.disable()


@shared_task(name="c.add")
def add(x: int, y: int, z: int = 0) -> int:
    return x + y + z


def make_app(setup: str, url: str, config: dict[str, Any]) -> Celery:
    """Return an app.

    Args:
        setup: `alone` is without configure_app; `configured`, with it; `before`, configured before it has its settings;
            `transport`, with the setting `broker_transport` and a configure_app.
        url: the broker's, in any form; `;` and lists of them are allowed.
        config: further settings.
    """
    settings = {"broker_connection_retry_on_startup": True, **config}
    if setup == "alone":
        app = Celery("c", broker=url, set_as_current=False)
        app.conf.update(settings)
        return app
    from celery_redis_plus import configure_app

    app = Celery("c", set_as_current=False)
    if setup == "before":
        configure_app(app)
    if setup == "transport":
        settings["broker_transport"] = "celery_redis_plus.transport:Transport"
    app.config_from_object({"broker_url": url, **settings})
    return app if setup == "before" else configure_app(app)


def _app_of_worker() -> Celery | None:
    import ast

    if URL_VARIABLE not in os.environ:
        return None
    return make_app(os.environ[SETUP_VARIABLE], os.environ[URL_VARIABLE], ast.literal_eval(os.environ.get(CONFIG_VARIABLE, "{}")))


app = _app_of_worker()
