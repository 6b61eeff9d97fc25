"""A task that kills its process each time ends in the dead letters, and runs when it is replayed after the fix."""

from __future__ import annotations

import pytest

from tests.support.dead_letters import dead_letters_of
from tests.support.waiting import wait_until

LIMIT = 2
CONFIG = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "broker_transport_options": {"visibility_timeout": 3, "delivery_limit": LIMIT},
}


@pytest.fixture
def letters(celery_app):
    with celery_app(**CONFIG).connection_for_read() as connection:
        yield dead_letters_of(connection.default_channel)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_poison_task_dies_at_the_delivery_limit_and_runs_after_the_fix(pool, celery_app, celery_worker, notes, letters):
    celery_app(**CONFIG).send_task("c.die", ["poison", "task"], priority=4)
    worker = celery_worker(pool=pool, concurrency=1, config=CONFIG)
    if pool == "solo":
        # Here the task takes the whole worker with it.
        worker.wait(60)
        second = celery_worker(pool=pool, config=CONFIG)
        second.wait(60)
        worker = celery_worker(pool=pool, config=CONFIG)
    [letter] = wait_until(lambda: letters.page("celery"), 20, worker.tail)
    assert (letter.reason, letter.failures, letter.deliveries) == ("delivery_limit", LIMIT, LIMIT)
    assert letter.headers["task"] == "c.die"
    assert letter.death_headers["x-death"][0]["reason"] == "delivery_limit"
    assert notes.started("poison") == ["task"] * LIMIT
    line = f"task c.die[{letter.headers['id']}] (message {letter.tag}) of queue 'celery' died at the delivery limit"
    wait_until(lambda: line in worker.log(), message=worker.tail)

    notes.go("poison")
    assert letters.replay(letter)
    assert notes.wait_for("poison", 1, 20, worker.tail) == {"task": 1}
    assert letters.page("celery") == []


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_task_that_kills_its_worker_before_its_early_ack_has_left_ends_as_well(pool, celery_app, celery_worker, notes, letters):
    config = {**CONFIG, "task_acks_late": False}
    app = celery_app(**config)
    app.send_task("c.die", ["hasty", "task"])
    with app.connection_for_read() as connection:
        channel = connection.default_channel

        def is_over():
            sizes = channel.queue_sizes("celery")
            return sizes.ready + sizes.delayed + sizes.unacked == 0

        for _ in range(LIMIT + 1):
            worker = celery_worker(pool=pool, config=config)
            wait_until(lambda worker=worker: letters.page("celery") or not worker.running, 20, worker.tail)
            if is_over():
                break
        assert is_over()
    runs = len(notes.started("hasty"))
    # Acked while it died, or dead at the limit: either way no worker dies of it any more.
    assert [letter.failures for letter in letters.page("celery")] in ([], [runs])
    assert 1 <= runs <= LIMIT
