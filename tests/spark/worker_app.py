"""What a real worker runs in the tests of the sink."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

from celery_redis_plus import configure_app

app = configure_app(Celery("sink", broker=os.environ.get("CRP_TEST_BROKER", "redisplus://")))
app.conf.worker_prefetch_multiplier = 1


@app.task
def note(url: str, key: str) -> None:
    """Note that this task ran, and when."""
    with redis.Redis.from_url(url.replace("redisplus", "redis")) as client:
        client.rpush("notes", f"{key} {time.time()}")
