"""A solo worker whose task publishes into the full queue that only it consumes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Celery's own worker, in a process of its own: it sets up logging and the current app for all that runs there.
PROGRAM = """
import sys
import time

import kombu
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_redis_plus.errors import PublisherBlocksItself
from tests.support.waiting import wait_until

app = Celery("solo", broker=sys.argv[1])
app.conf.update(
    task_queues=[
        kombu.Queue("small", durable=True, queue_arguments={"x-max-pending": 1, "x-overflow": "block"})
    ],
    task_default_queue="small",
    task_acks_late=True,
    worker_prefetch_multiplier=1,
)
seen = []


@app.task(name="flow.again")
def again():
    began = time.monotonic()
    try:
        again.apply_async()
    except PublisherBlocksItself as error:
        seen.append((time.monotonic() - began, str(error)))


with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
    again.apply_async()
    wait_until(lambda: seen, 20)
((took_s, text),) = seen
assert took_s < 15, "it waited for itself"
print(text)
"""


@pytest.mark.slow
def test_a_task_that_would_wait_for_its_own_worker_fails_at_once(broker_url):
    command = [sys.executable, "-c", PROGRAM, broker_url]
    ran = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "'small' is full, and only this thread" in ran.stdout
