"""The demo's app and its tasks, as a user would write them: `celery -A celery_redis_plus.demo.app worker`.

The demo names the broker in CELERY_BROKER_URL, as Celery has it.
"""

from __future__ import annotations

import time
from datetime import datetime

from celery import Celery, Task
from kombu import Queue
from kombu.common import Broadcast

from celery_redis_plus.demo.records import note
from celery_redis_plus.integration.configure import configure_app

PRIORITIES = "demo.priorities"
COUNTDOWNS = "demo.countdowns"
RETRIES = "demo.retries"
BROADCASTS = "demo.broadcasts"
CRASHES = "demo.crashes"
#: The queues that outlive their consumers; every worker has a queue of its own for broadcasts.
QUEUES = (PRIORITIES, COUNTDOWNS, RETRIES, CRASHES)

#: A task of the retries fails so many times before it succeeds.
FAILED_RUNS = 2
BACKOFF_S = 0.2

#: How long a task of the crash takes.
CRASH_TASK_S = 0.04

app = Celery("celery-redis-plus-demo", broker="redisplus://", set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_queues=[*(Queue(name) for name in QUEUES), Broadcast(BROADCASTS)],
)
configure_app(app)


@app.task(name=PRIORITIES, bind=True)
def run_by_priority(self: Task, number: int, priority: int) -> None:
    """Note the start."""
    note(PRIORITIES, self, number=number, priority=priority)


@app.task(name=COUNTDOWNS, bind=True)
def run_on_time(self: Task, number: int) -> None:
    """Note the start beside the time at which it was due."""
    note(COUNTDOWNS, self, number=number, due=datetime.fromisoformat(self.request.eta).timestamp())


@app.task(name=RETRIES, bind=True)
def fail_then_succeed(self: Task, number: int) -> None:
    """Note each attempt; fail twice, and ask for a retry with exponential back-off."""
    attempt = self.request.retries
    note(RETRIES, self, number=number, attempt=attempt)
    if attempt < FAILED_RUNS:
        raise self.retry(countdown=BACKOFF_S * 2**attempt, max_retries=5)


@app.task(name=BROADCASTS, bind=True)
def hear_broadcast(self: Task, number: int) -> None:
    """Note that this worker heard it."""
    note(BROADCASTS, self, number=number)


@app.task(name=CRASHES, bind=True, acks_late=True)
def work_a_while(self: Task, number: int) -> None:
    """Note the start and the end, between which a worker may be killed."""
    note(CRASHES, self, number=number, event="start")
    time.sleep(CRASH_TASK_S)
    note(CRASHES, self, number=number, event="end")
