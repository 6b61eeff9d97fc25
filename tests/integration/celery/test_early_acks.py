"""Tasks that are acked before they begin, beside others: each of them frees the prefetch count for the next."""

from __future__ import annotations

from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


def test_a_free_thread_gets_work_while_others_are_long_at_work(celery_app, celery_worker, notes):
    """However much of the prefetch count they hold: the loop is told of each ack while no task waits for a thread."""
    config = {"worker_prefetch_multiplier": 1, "task_annotations": {"c.wait": {"acks_late": True}}}
    worker = celery_worker(pool="threads", concurrency=4, config=config)
    app = celery_app(**config)
    for number in range(2):
        app.send_task("c.wait", ["long", str(number)])
    wait_until(lambda: len(notes.started("long")) == 2, 15, worker.tail)
    began = machine_time()
    for number in range(40):
        app.send_task("c.note", ["quick", str(number)])
    assert len(notes.wait_for("quick", 40, 30, worker.tail)) == 40
    # By its timers alone the loop would look every second or two, for two tasks each time.
    assert machine_time() - began < 10
    notes.go("long")
