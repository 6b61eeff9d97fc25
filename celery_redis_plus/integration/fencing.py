"""`fence`: the number by which an application's own database refuses a task that lost its message."""

from __future__ import annotations

import time

from celery import current_app

from celery_redis_plus.broker.consumers.fencing import token_at, token_of
from celery_redis_plus.errors import NoFence
from celery_redis_plus.transport.stored_json import TASK_FENCE


def fence() -> int:
    """Return the fencing token of the running task: a positive 64-bit integer that grows with each delivery of its message.

    A retry, a replay or another later message has a greater one, too, from the next millisecond on. A database that keeps the
    greatest token it has seen refuses a task whose message another worker has by now. In an eager task it is the time.

    Raises:
        NoFence: no task of a worker runs in this thread; or its message is a broadcast, or came over another broker.
    """
    task = current_app.current_worker_task
    if task is None:
        raise NoFence("fence() was called outside a task of a worker; call it inside one, in the thread that runs it")
    request = task.request
    if request.is_eager:
        return token_at(time.time_ns() // 1_000_000, 1)
    tag, _, rest = (request.properties or {}).get(TASK_FENCE, "").partition(" ")
    claim = rest.partition(" ")[0]
    # A broadcast is not claimed.
    if not int(claim or 0):
        why = "a broadcast, which every subscriber gets" if tag else "none that came over a broker of celery-redis-plus"
        raise NoFence(f"fence() in task {task.name}[{request.id}]: its message is {why}")
    return token_of(tag, int(claim))
