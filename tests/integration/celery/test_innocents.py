"""Tasks that a worker had only prefetched when another task killed it."""

from __future__ import annotations

import pytest

from tests.support.dead_letters import dead_letters_of
from tests.support.stored import keys_of
from tests.support.waiting import wait_until

#: A worker starts for each delivery, and one more.
LIMIT = 2
INNOCENTS = 5
CONFIG = {
    "task_acks_late": True,
    "worker_prefetch_multiplier": INNOCENTS + 1,
    "broker_transport_options": {"visibility_timeout": 3, "delivery_limit": LIMIT},
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.weekly), "gevent", "prefork"])
def test_a_task_that_kills_its_worker_dies_alone(pool, celery_app, celery_worker, notes, redis_client):
    app = celery_app(**CONFIG)
    app.send_task("c.die_with_all", ["poison", "task"])
    for number in range(INNOCENTS):
        app.send_task("c.note", ["innocent", str(number)])
    with app.connection_for_read() as connection:
        letters, keys = dead_letters_of(connection.default_channel), keys_of("celery")

        def come_back_at_once():
            # In place of the visibility timeout, and of the dead consumer's: it would count for a fair part of what is ready.
            redis_client.delete(keys.consumers)
            claimed = redis_client.zrange(keys.index, 0, -1)
            if claimed:
                redis_client.zadd(keys.index, dict.fromkeys(claimed, 1), xx=True)
            return len(claimed)

        for _ in range(LIMIT):
            worker = celery_worker(pool=pool, concurrency=1, config=CONFIG)
            wait_until(lambda worker=worker: not worker.running, 30, worker.tail)
            worker.kill()
            assert come_back_at_once() == INNOCENTS + 1, "the worker had prefetched them"
        worker = celery_worker(pool=pool, concurrency=1, config=CONFIG)
        assert notes.wait_for("innocent", INNOCENTS, 30, worker.tail) == {str(number): 1 for number in range(INNOCENTS)}
        assert notes.started("poison") == ["task"] * LIMIT
        [letter] = letters.page("celery")
        assert (letter.reason, letter.failures, letter.headers["task"]) == ("delivery_limit", LIMIT, "c.die_with_all")
        wait_until(lambda: not redis_client.zcard(keys.index), 10, worker.tail)
