"""The app of the pipeline's demo: three kinds of tasks, whose fates follow from their numbers, and the ledger they write."""

from __future__ import annotations

import time
from enum import StrEnum

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Queue

from celery_redis_plus.demo.records import note
from celery_redis_plus.integration.configure import configure_app

LEDGER = "ledger"

#: Task -> its queue.
QUEUE_OF_TASK = {"shop.bill": "orders", "shop.ship": "orders", "shop.notify": "mails"}
QUEUES = ("orders", "mails")

MAX_RETRIES = 2
RETRY_DELAY_S = 0.3
MOST_DELAY_S = 8.0
#: How long a task takes: so long that a worker is often found in the middle of one.
WORK_S = 0.001

app = Celery("celery-redis-plus-demo", broker="redisplus://", set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 4, "event_log": True, "event_log_payload": True},
    task_acks_late=True,
    task_ignore_result=True,
    task_queues=[Queue(name) for name in QUEUES],
)
configure_app(app)


class Fate(StrEnum):
    """How a task ends, as the ledger has it."""

    SUCCEED = "succeeded"
    FAIL = "failed"
    RETRY = "retried"
    REJECT = "rejected"


def fate_of(number: int, attempt: int) -> Fate:
    """Return how an attempt ends: of a hundred tasks five fail, three are retried, one is rejected."""
    place = number % 100
    if place < 5:
        return Fate.FAIL
    if place < 8 and attempt < MAX_RETRIES:
        return Fate.RETRY
    return Fate.REJECT if place == 8 else Fate.SUCCEED


def delay_of(number: int) -> float | None:
    """Return the countdown of a task, seconds: three of a hundred have one."""
    return 1.0 + number % 1000 / 1000 * (MOST_DELAY_S - 1.0) if number % 100 in {9, 10, 11} else None


def task_of(number: int) -> str:
    """Return the task's name: of ten tasks five are bills, three shipments, two notes."""
    return ("shop.bill", "shop.ship", "shop.bill", "shop.notify", "shop.bill")[number // 2 % 5]


def work(self: Task, number: int) -> None:
    """Note the start and how it ends, and end so."""
    attempt = self.request.retries
    facts = {
        # The message, which a retry replaces by another, and a redelivery does not.
        "id": self.request.properties["delivery_tag"],
        "task": self.name,
        "number": number,
        "eta": self.request.eta,
    }
    note(LEDGER, self, **facts)
    time.sleep(WORK_S)
    fate = fate_of(number, attempt)
    note(LEDGER, self, **facts, fate=fate)
    if fate is Fate.FAIL:
        raise ValueError(f"order {number} has no address")
    if fate is Fate.RETRY:
        raise self.retry(countdown=RETRY_DELAY_S, max_retries=MAX_RETRIES)
    if fate is Fate.REJECT:
        raise Reject(f"order {number} is unknown", requeue=False)


for name in QUEUE_OF_TASK:
    app.task(work, name=name, bind=True)
