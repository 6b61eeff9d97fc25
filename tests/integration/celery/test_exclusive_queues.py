"""Celery's own exclusive queues: remote control (`control_queue_exclusive`), its replies, events (`event_queue_exclusive`)."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until

CONFIG = {"control_queue_exclusive": True, "event_queue_exclusive": True}
ANSWER_S = 5


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.weekly), "gevent"])
def test_remote_control_survives_a_lost_connection_and_a_killed_worker(pool, celery_app, celery_worker, redis_client):
    app = celery_app(**CONFIG)

    def answers():
        # A connection of its own: the others are cut as well.
        with app.connection_for_write() as connection:
            return app.control.ping(timeout=ANSWER_S, limit=1, connection=connection)

    worker = celery_worker(pool=pool, config=CONFIG, name="same", options=("--task-events",))
    # A worker of greenlets is ready before it listens.
    node = next(iter(wait_until(answers, 20, worker.tail)[0]))
    queue = f"{node}.celery.pidbox"
    first = wait_until(lambda: redis_client.hget(f"meta:{{{queue}}}", "owner"))
    redis_client.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: redis_client.hget(f"meta:{{{queue}}}", "owner") not in (None, first), 20, worker.tail)
    wait_until(answers, 20, worker.tail)
    worker.kill()
    second = celery_worker(pool=pool, config=CONFIG, name="same")
    wait_until(answers, 20, second.tail)
    assert "locked queue" not in second.log()


def test_two_workers_of_the_same_name_start_by_default(celery_app, celery_worker):
    first, second = (celery_worker(pool="threads", name="same") for _ in range(2))
    replies = wait_until(lambda: len(celery_app().control.ping(timeout=ANSWER_S, limit=2)) == 2, 20, second.tail)
    assert replies, first.tail()


def test_a_second_worker_of_the_same_name_is_told_so(celery_app, celery_worker):
    worker = celery_worker(pool="threads", config=CONFIG, name="same")
    assert celery_app(**CONFIG).control.ping(timeout=ANSWER_S, limit=1), worker.tail()
    with pytest.raises(RuntimeError, match=r"locked queue .same@"):
        celery_worker(pool="threads", config=CONFIG, name="same")


def test_replies_of_several_requests_and_events_come_by_exclusive_queues(celery_app, celery_worker, notes):
    app = celery_app(**CONFIG)
    worker = celery_worker(pool="threads", config=CONFIG, options=("--task-events",))
    seen = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        with receiver.consumer_context() as (consuming, *_):
            for _ in range(3):
                assert app.control.inspect(timeout=ANSWER_S, limit=1).stats(), worker.tail()
            app.send_task("c.note", ["watched", "task"])
            notes.wait_for("watched", 1, 20, worker.tail)

            def succeeded():
                consuming.drain_events(timeout=5)
                return any(event["type"] == "task-succeeded" for event in seen)

            wait_until(succeeded, 20, worker.tail)
