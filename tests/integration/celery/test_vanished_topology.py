"""FLUSHDB under a live worker and a live publisher: what is published afterwards runs, and remote control answers."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until

#: Routes through a topic exchange, whose bindings are lost with everything else.
CONFIG = {"task_default_exchange": "jobs", "task_default_exchange_type": "topic", "task_default_routing_key": "jobs.default"}


@pytest.mark.slow
def test_a_worker_and_a_publisher_go_on_after_a_flush(celery_app, celery_worker, notes, redis_client, broker_url):
    worker = celery_worker(pool="threads", config=CONFIG)
    app = celery_app(**CONFIG)
    app.send_task("c.note", ("before", "1"))
    notes.wait_for("before", 1, message=worker.tail)

    redis_client.flushdb()
    for number in range(20):
        app.send_task("c.note", ("after", str(number)))
    notes.wait_for("after", 20, message=worker.tail)
    assert len(notes.done("after")) == 20

    newcomer = celery_app(**CONFIG)
    newcomer.send_task("c.note", ("newcomer", "1"))
    notes.wait_for("newcomer", 1, message=worker.tail)
    wait_until(lambda: newcomer.control.ping(timeout=1), 20, worker.tail)
    assert redis_client.hget("exchanges", "jobs")
    # The worker's own queue for remote control, which nobody else knows of.
    wait_until(lambda: redis_client.keys("meta:{*pidbox*"), 20, worker.tail)
    assert "vanished from the server" in worker.log()
