"""The demo's Celery app, as a user would write it: used by the demo's own process, which publishes, and by its workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from celery import Celery, Task
from celery.signals import worker_ready
from kombu import Queue
from kombu.common import Broadcast

from celery_redis_plus.demo.task_log import TaskLog
from celery_redis_plus.integration.configure import configure_app

PRIORITIES = "demo.priorities"
COUNTDOWNS = "demo.countdowns"
RETRIES = "demo.retries"
BROADCASTS = "demo.broadcasts"
CRASHES = "demo.crashes"
#: The queues that outlive their consumers; every worker has a queue of its own for broadcasts.
QUEUES = (PRIORITIES, COUNTDOWNS, RETRIES, CRASHES)

#: The heartbeat comes every sixth of it, so a busy machine may be late by more than two seconds.
VISIBILITY_TIMEOUT_S = 4

BROKER_VARIABLE = "CRP_DEMO_BROKER"
PREFIX_VARIABLE = "CRP_DEMO_PREFIX"

#: A task of the retries fails so many times before it succeeds.
FAILED_RUNS = 2
BACKOFF_S = 0.2

#: How long a task of the crash takes.
CRASH_TASK_S = 0.04


def broker_prefix(prefix: str) -> str:
    """Return the app's `global_keyprefix`."""
    return f"{prefix}broker:"


@cache
def _task_log() -> TaskLog:
    return TaskLog(os.environ[BROKER_VARIABLE], os.environ[PREFIX_VARIABLE])


def note(kind: str, hostname: str, **facts: object) -> None:
    """Add a record of a worker, by its host name."""
    _task_log().note(kind, worker=hostname.partition("@")[0], **facts)


# ---- tasks: each notes that it ran


def run_by_priority(self: Task, number: int, priority: int) -> None:
    """Note the start."""
    note(PRIORITIES, self.request.hostname, number=number, priority=priority)


def run_on_time(self: Task, number: int) -> None:
    """Note the start beside the time at which it was due."""
    due = datetime.fromisoformat(self.request.eta).timestamp()
    note(COUNTDOWNS, self.request.hostname, number=number, due=due)


def fail_then_succeed(self: Task, number: int) -> None:
    """Note each attempt; fail twice, and ask for a retry with exponential back-off."""
    attempt = self.request.retries
    note(RETRIES, self.request.hostname, number=number, attempt=attempt)
    if attempt < FAILED_RUNS:
        raise self.retry(countdown=BACKOFF_S * 2**attempt, max_retries=5)


def hear_broadcast(self: Task, number: int) -> None:
    """Note that this worker heard it."""
    note(BROADCASTS, self.request.hostname, number=number)


def work_a_while(self: Task, number: int) -> None:
    """Note the start and the end, between which a worker may be killed."""
    note(CRASHES, self.request.hostname, number=number, event="start")
    time.sleep(CRASH_TASK_S)
    note(CRASHES, self.request.hostname, number=number, event="end")


# ---- the app


def make_app(broker: str, prefix: str) -> Celery:
    """Return the app; all its keys in Redis begin with `prefix`."""
    app = Celery("celery-redis-plus-demo", broker=broker, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": VISIBILITY_TIMEOUT_S, "global_keyprefix": broker_prefix(prefix)},
        task_ignore_result=True,
        task_queues=[*(Queue(name) for name in QUEUES), Broadcast(BROADCASTS)],
    )
    configure_app(app)
    for name, task, options in (
        (PRIORITIES, run_by_priority, {}),
        (COUNTDOWNS, run_on_time, {}),
        (RETRIES, fail_then_succeed, {}),
        (BROADCASTS, hear_broadcast, {}),
        (CRASHES, work_a_while, {"acks_late": True}),
    ):
        app.task(task, name=name, bind=True, **options)
    return app


def app_of_worker(make: Callable[[str, str], Celery] = make_app) -> Celery:
    """Return the app for the broker and the prefix that the environment names; its worker notes when it is ready."""

    def note_ready(sender: Any, **_: object) -> None:
        note("ready", sender.hostname)

    worker_ready.connect(note_ready, weak=False)
    return make(os.environ[BROKER_VARIABLE], os.environ[PREFIX_VARIABLE])
