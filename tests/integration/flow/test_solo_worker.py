"""A solo worker whose task publishes into the full queue that only it consumes."""

from __future__ import annotations

import time

import kombu
import pytest
from celery import Celery
from kombu import pools

from celery_redis_plus.errors import PublisherBlocksItself
from tests.support.waiting import wait_until

ARGUMENTS = {"x-max-pending": 1, "x-overflow": "block"}


@pytest.mark.slow
def test_a_task_that_would_wait_for_its_own_worker_fails_at_once(broker_url, redis_client):
    """In this process, so that the error can be looked at; the worker is Celery's own, with the solo pool."""
    from celery.contrib.testing.worker import start_worker

    app = Celery("solo", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_queues=[kombu.Queue("small", durable=True, queue_arguments=ARGUMENTS)],
        task_default_queue="small",
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
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
        wait_until(lambda: redis_client.zcard("consumers:{small}"))
        again.apply_async()
        wait_until(lambda: seen, 20)
    app.close()
    pools.reset()
    ((took_s, text),) = seen
    assert "'small' is full, and only this thread" in text
    assert took_s < 15, "it waited for itself"
