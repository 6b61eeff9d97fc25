"""A queue is deleted below a worker: it hears of it, declares the queue again, and goes on with all that it consumes."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until


# How many tasks run when the worker connects again. The others cannot hear of it while a task keeps the consumer's thread, or the
# pool is full.
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("pool", "running"), [("prefork", 2), pytest.param("threads", 2, marks=pytest.mark.weekly), ("gevent", 0), ("solo", 0)]
)
def test_a_worker_declares_a_deleted_queue_again_and_loses_nothing_of_others(
    pool, running, celery_app, celery_worker, notes, redis_client
):
    config = {
        "task_acks_late": True,
        "worker_prefetch_multiplier": 5,
        # Sweeps, by which the worker notices, come every 0.5 s then.
        "broker_transport_options": {"visibility_timeout": 3},
    }
    worker = celery_worker(pool=pool, concurrency=2, config=config, queues=("kept", "gone"))
    app = celery_app(**config)
    app.send_task("c.note", ["gone", "before"], queue="gone")
    notes.wait_for("gone", 1, message=worker.tail)
    # The first ones run, and others are prefetched.
    count = 8 if running else 0
    for number in range(count):
        app.send_task("c.wait", ["kept", str(number)], queue="kept")
    wait_until(lambda: len(notes.started("kept")) == running, 15, worker.tail)
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete("gone")
    wait_until(lambda: redis_client.hexists("meta:{gone}", "id"), 20, worker.tail)
    for number in range(5):
        app.send_task("c.note", ["gone", str(number)], queue="gone")
    for number in range(3):
        app.send_task("c.note", ["more", str(number)], queue="kept")
    notes.go("kept")
    assert notes.wait_for("gone", 6, 20, worker.tail) == dict.fromkeys(("before", *"01234"), 1)
    assert notes.wait_for("more", 3, 20, worker.tail) == {str(number): 1 for number in range(3)}
    assert notes.wait_for("kept", count, 20, worker.tail) == {str(number): 1 for number in range(count)}
    assert "queue 'gone', consumed here, was deleted" in worker.log()
    wait_until(lambda: not redis_client.keys("message:{kept}:*"), 10, worker.tail)
