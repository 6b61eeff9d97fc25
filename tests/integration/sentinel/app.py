"""The app of these tests' workers. Tasks note themselves on another server than the broker's, which outlives each failover."""

from __future__ import annotations

import ast
import os
import time
from functools import cache

import redis
from celery import Celery, shared_task

BROKER_VARIABLE = "CRP_TEST_SENTINEL_BROKER"
OPTIONS_VARIABLE = "CRP_TEST_SENTINEL_OPTIONS"
JOURNAL_VARIABLE = "CRP_TEST_SENTINEL_JOURNAL"
#: The list of (number, wall clock) in which the tasks ran.
RAN = "ran"


@shared_task(name="sentinel.note", acks_late=True)
def note(number: int, sleep_s: float = 0.0) -> None:
    """Note the number and the time, after `sleep_s`."""
    if sleep_s:
        time.sleep(sleep_s)
    _journal().rpush(RAN, f"{number} {time.time()!r}")


@cache
def _journal() -> redis.Redis:
    """The client of this process, which lasts as long as it: a connection for each task would cost more than the task."""
    return redis.Redis.from_url(os.environ[JOURNAL_VARIABLE])


def make_app(broker: str | list[str], options: dict[str, object]) -> Celery:
    """Return an app that retries a publish for some seconds."""
    from celery_redis_plus import configure_app

    app = Celery("sentinel", broker=broker, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options=options,
        task_publish_retry_policy={"max_retries": 20, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.5},
    )
    return configure_app(app)


def _app_of_worker() -> Celery | None:
    if BROKER_VARIABLE not in os.environ:
        return None
    return make_app(os.environ[BROKER_VARIABLE], ast.literal_eval(os.environ[OPTIONS_VARIABLE]))


app = _app_of_worker()
