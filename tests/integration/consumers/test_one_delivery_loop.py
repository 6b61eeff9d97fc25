"""A connection has one delivery loop, whichever of its channels consumes first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from celery_redis_plus.consumer import delivery_loop

THREADS = 8


def test_threads_that_begin_to_consume_at_the_same_moment_share_the_loop(connect, monkeypatch):
    made, meet = [], threading.Barrier(THREADS)

    class Noted(delivery_loop.DeliveryLoop):
        def __init__(self, *arguments):
            made.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(delivery_loop, "DeliveryLoop", Noted)
    connection = connect()
    connection.connect()
    transport = connection.transport

    def begin(_):
        meet.wait(30)
        return transport.delivery_loop

    with ThreadPoolExecutor(THREADS) as threads:
        loops = list(threads.map(begin, range(THREADS)))
    assert len(made) == 1
    assert {id(loop) for loop in loops} == {id(made[0])}
