"""One app with the plugins that are installed, each set up as its own documentation shows.

The broker is at CRP_TEST_BROKER (`redisplus://…`), everything else that wants a Redis at CRP_TEST_REDIS (`redis://…`).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

import redis
from celery import Celery

REDIS = os.environ["CRP_TEST_REDIS"]

app = Celery("plugins", broker=os.environ["CRP_TEST_BROKER"], backend=REDIS)
app.conf.update(
    # celery-once, celery-singleton and RedBeat read a URL of redis-py, so none of ours.
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": REDIS, "default_timeout": 60}},
    singleton_backend_url=REDIS,
    redbeat_redis_url=REDIS,
    redbeat_lock_timeout=10,
    beat_max_loop_interval=1,
    beat_schedule={"tick": {"task": "p.tick", "schedule": 1.0}},
)


if "CRP_TEST_SENTRY" in os.environ:
    import sentry_sdk

    def note_event(event: Any, hint: Any) -> None:
        """Keep an event where the test looks, and send it to nobody."""
        failed = event["exception"]["values"][0]["value"]
        with redis.Redis.from_url(REDIS) as client:
            client.rpush("sentry", f"{event['transaction']}: {failed}")

    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", before_send=note_event)


@app.task(name="p.tick", shared=False)
def tick() -> None:
    """What RedBeat sends each second."""


@app.task(name="p.fail", shared=False)
def fail() -> None:
    """Raise an exception."""
    raise ValueError("no luck")


with suppress(ImportError):
    from celery_batches import Batches

    @app.task(name="p.batched", base=Batches, flush_every=3, flush_interval=1, shared=False)
    def batched(requests: list[Any]) -> None:
        """Answer each request with the size of its batch."""
        for request in requests:
            app.backend.mark_as_done(request.id, len(requests), request=request)

    @app.task(name="p.batched_late", base=Batches, flush_every=3, flush_interval=1, acks_late=True, shared=False)
    def batched_late(requests: list[Any]) -> None:
        """Note the begin, wait for the key `batch:go`, note the end."""
        with redis.Redis.from_url(REDIS) as client:
            client.rpush("batch:begun", len(requests))
            deadline = time.monotonic() + 60
            while not client.exists("batch:go") and time.monotonic() < deadline:
                time.sleep(0.02)
            client.rpush("batch:done", len(requests))

    @app.task(name="p.batched_poison", base=Batches, flush_every=3, flush_interval=1, acks_late=True, shared=False)
    def batched_poison(requests: list[Any]) -> None:
        """Note the begin, and kill the process that runs it."""
        with redis.Redis.from_url(REDIS) as client:
            client.rpush("batch:begun", len(requests))
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="p.batched_early_poison", base=Batches, flush_every=3, flush_interval=1, shared=False)
    def batched_early_poison(requests: list[Any]) -> None:
        """Kill the process that runs it, behind the ack."""
        os.kill(os.getpid(), signal.SIGKILL)


with suppress(ImportError):
    from celery_once import QueueOnce

    @app.task(name="p.once", base=QueueOnce)
    def once(number: int) -> int:
        """Return the number; celery-once refuses a second one that waits."""
        return number


with suppress(ImportError):
    from celery_singleton import Singleton

    @app.task(name="p.single", base=Singleton)
    def single(number: int) -> int:
        """Return the number; celery-singleton gives the waiting one's result for a second one."""
        return number
