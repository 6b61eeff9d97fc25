"""A worker of several queues serves all of them, at a prefetch of one too."""

from __future__ import annotations

import pytest
from kombu import Queue


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["solo", "prefork", pytest.param("threads", marks=pytest.mark.weekly), "gevent"])
def test_a_few_tasks_beside_a_full_queue_are_among_the_first(celery_app, celery_worker, notes, pool):
    app = celery_app("configured", task_queues=[Queue("a"), Queue("b")])
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for name, count in (("a", 300), ("b", 5)):
            for number in range(count):
                app.send_task("c.note", ("n", f"{name}{number}"), queue=name, producer=producer)
    celery_worker("configured", pool=pool, concurrency=1, queues=("a", "b"), options=("--prefetch-multiplier", "1"), name="fair")
    notes.wait_for("n", 20)
    started = notes.started("n")
    assert max(started.index(f"b{number}") for number in range(5)) < 12, started
