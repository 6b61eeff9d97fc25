"""Tasks whose fate follows from their names; each notes what it does in the list `ledger`."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_redis_plus import configure_app

URL = os.environ.get("CRP_TEST_BROKER", "redisplus://")
#: Kind of task -> how many of a hundred.
KINDS = {
    "ok": 45, "retry": 10, "fail": 8, "reject": 8, "ignore": 4, "eta": 10, "expire": 4, "revoke": 5, "large": 2, "pickled": 4,
}  # fmt: skip
RETRIES = 2

app = Celery("ledger", broker=URL)
app.conf.update(
    accept_content=["json", "pickle"],
    broker_transport_options={"event_log": True, "event_log_payload": True, "visibility_timeout": 60},
    task_acks_late=True,
    task_ignore_result=True,
)
configure_app(app, revoke_removes=True)


def note(task: Any, what: str) -> None:
    with redis.Redis.from_url(URL.replace("redisplus", "redis")) as client:
        tag = task.request.properties["delivery_tag"]
        client.rpush("ledger", json.dumps([what, task.name, task.request.id, task.request.retries, tag]))


def work(self: Any, blob: object = None) -> None:
    kind = self.name.partition(".")[2]
    note(self, "start")
    if kind == "retry" and self.request.retries < RETRIES:
        raise self.retry(countdown=0.2, max_retries=RETRIES)
    note(self, "end")
    if kind == "fail":
        raise ValueError("a\ttab, a\nline and a \\ in it")
    if kind == "reject":
        raise Reject("no", requeue=False)
    if kind == "ignore":
        raise Ignore


for kind in KINDS:
    app.task(work, name=f"ledger.{kind}", bind=True)
