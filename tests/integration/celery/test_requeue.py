"""Tasks that are sent back: by their own wish, or by the settings of the app."""

from __future__ import annotations

from tests.support.waiting import wait_until

LIMIT = 3


def test_a_task_that_asks_for_another_delivery_gets_it_until_it_is_done(celery_app, celery_worker, notes):
    config = {"task_acks_late": True, "broker_transport_options": {"delivery_limit": LIMIT}}
    celery_app(**config).send_task("c.not_now", ["shy", "task"])
    worker = celery_worker(pool="solo", config=config)
    wait_until(lambda: len(notes.started("shy")) > LIMIT + 1, 20, worker.tail)
    notes.go("shy")
    assert notes.wait_for("shy", 1, 20, worker.tail) == {"task": 1}
    assert worker.log().count("was sent back with requeue for the second time") == 1
    assert "died at the delivery limit" not in worker.log()


def test_a_task_that_is_sent_back_at_its_time_limit_leaves_others_their_turn(celery_app, celery_worker, notes):
    config = {
        "task_acks_late": True,
        "task_acks_on_failure_or_timeout": False,
        "task_acks_on_timeout": False,
        "worker_prefetch_multiplier": 1,
        "broker_transport_options": {"delivery_limit": 20},
    }
    app = celery_app(**config)
    app.send_task("c.wait", ["long", "task"], time_limit=0.3)
    app.send_task("c.note", ["behind", "task"])
    worker = celery_worker(pool="prefork", concurrency=1, config=config)
    assert notes.wait_for("behind", 1, 30, worker.tail) == {"task": 1}
    notes.go("long")
