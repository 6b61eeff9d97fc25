"""Consumers of limited messages, one connection each: `python -m tests.chaos.limited_consumer URL QUEUE COUNT TASK_S`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from kombu import Connection, Consumer, Queue

import celery_redis_plus  # noqa: F401 - makes kombu know the scheme

#: So that a killed process is noticed soon.
VISIBILITY_TIMEOUT_S = 3


def consume(url: str, queue: str, task_s: float) -> None:
    def received(_: Any, message: Any) -> None:
        time.sleep(task_s)
        message.ack()

    with (
        Connection(url, transport_options={"visibility_timeout": VISIBILITY_TIMEOUT_S}) as connection,
        Consumer(connection, [Queue(queue, no_declare=True)], callbacks=[received], prefetch_count=1),
    ):
        while True:
            connection.drain_events()


if __name__ == "__main__":
    URL, QUEUE, COUNT, TASK_S = sys.argv[1:5]
    threads = [threading.Thread(target=consume, args=(URL, QUEUE, float(TASK_S)), daemon=True) for _ in range(int(COUNT))]
    for thread in threads:
        thread.start()
    threads[0].join()
