"""`fence`: the number by which an application's own database refuses a task that lost its message.

Martin Kleppmann, "How to do distributed locking" (2016): a lease alone protects nothing that its late owner writes.
"""

from __future__ import annotations

import time

from celery import current_app

from celery_redis_plus.errors import NoFence
from celery_redis_plus.stored_message import TAG_TIME
from celery_redis_plus.transport.stored_json import TASK_FENCE

#: Bits of a token for the number of the claim, below those for the time: a positive 64-bit integer until the year 2248.
CLAIM_BITS = 20


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
        return _token(time.time_ns() // 1_000_000, 1)
    tag, _, rest = (request.properties or {}).get(TASK_FENCE, "").partition(" ")
    claim = rest.partition(" ")[0]
    # A broadcast is not claimed.
    if not int(claim or 0):
        why = "a broadcast, which every subscriber gets" if tag else "none that came over a broker of celery-redis-plus"
        raise NoFence(f"fence() in task {task.name}[{request.id}]: its message is {why}")
    return _token(int(tag[TAG_TIME], 16), int(claim))


def _token(time_ms: int, claim: int) -> int:
    """Return the token of a claim by its number: messages of a later ms have greater ones."""
    return time_ms << CLAIM_BITS | min(claim, (1 << CLAIM_BITS) - 1)
