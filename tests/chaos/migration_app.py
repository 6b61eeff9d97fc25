"""The app of `test_migration.py`, for workers of kombu's own Redis transport and of ours: the URL's scheme says which.

Tasks note their runs in the list `runs` of the database `NOTES_DB` on the broker's server.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from typing import Any

import redis
from celery import Celery, Task, shared_task

from celery_redis_plus import configure_app
from tests.support.apps import plain_url
from tests.support.waiting import wait_until

BROKER_VARIABLE = "CRP_TEST_BROKER"
NOTES_DB = 1
#: Blocked tasks wait for this key, and no longer than this.
GO, PATIENCE_S = "go", 300.0


def make_app(broker: str) -> Celery:
    """Return the app; kombu's priorities keep their direction with our transport."""
    app = Celery("migration", broker=broker, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_send_task_events=False,
        worker_prefetch_multiplier=int(os.environ.get("CRP_PREFETCH", "4")),
        task_ignore_result=True,
    )
    if broker.startswith("redisplus"):
        app.conf.broker_transport_options = {"priority_order": "low-first"}
        configure_app(app)
    return app


# By process: a forked child must not share its parent's socket.
@cache
def _notes(pid: int) -> redis.Redis:
    return redis.Redis.from_url(plain_url(os.environ[BROKER_VARIABLE], NOTES_DB))


def _note(task: Task, name: str) -> None:
    # kombu's transport marks what a worker gives back.
    entry = {
        "name": name,
        "worker": task.request.hostname.partition("@")[0],
        "time": time.time(),
        "given_back": bool(task.request.get("redelivered")),
    }
    _notes(os.getpid()).rpush("runs", json.dumps(entry))


@shared_task(name="migration.run", bind=True)
def run(self: Task, name: str) -> None:
    """Note the run."""
    _note(self, name)


@shared_task(name="migration.block", bind=True)
def block(self: Task, name: str) -> None:
    """Wait for the key `go`, and note the run."""
    wait_until(lambda: _notes(os.getpid()).exists(GO), PATIENCE_S, interval_s=0.05)
    _note(self, name)


def runs(client: redis.Redis) -> list[dict[str, Any]]:
    """Return the runs that are noted, in their order; `client` has the database `NOTES_DB`."""
    return [json.loads(entry) for entry in client.lrange("runs", 0, -1)]


app = make_app(os.environ[BROKER_VARIABLE]) if os.environ.get(BROKER_VARIABLE) else None
