"""Whether a task may begin, asked of the server after a standstill of the worker."""

import re

import pytest

from tests.support.waiting import wait_until


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_frozen_pool_begins_nothing_that_others_have_run(pool, celery_worker, celery_app, notes):
    config = {"broker_transport_options": {"visibility_timeout": 3}, "worker_prefetch_multiplier": 5, "task_acks_late": True}
    app = celery_app(**config)
    frozen = celery_worker(pool=pool, concurrency=1, config=config)
    app.send_task("c.wait", ("first", "0"))
    for number in range(3):
        app.send_task("c.note", ("lease", str(number)))
    wait_until(lambda: notes.started("first"))
    # They wait in the pool's own queue, or for a free process.
    wait_until(lambda: len(re.findall(r"Task c\.note\[.*\] received", frozen.log())) == 3)
    frozen.freeze()
    other = celery_worker(pool="solo", config=config)
    notes.go("first")
    notes.wait_for("lease", 3)
    frozen.thaw()
    wait_until(lambda: frozen.log().count("was given to another consumer") >= 3)
    # None of them has kept a place in the pool.
    other.stop()
    app.send_task("c.note", ("after", "0"))
    notes.wait_for("after", 1, 10, frozen.tail)

    assert sorted(notes.started("lease")) == ["0", "1", "2"]
