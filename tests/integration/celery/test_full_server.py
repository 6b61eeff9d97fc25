"""A server whose memory is full: publishers hear of it, workers go on, and nothing is lost (issue B, Shows 5)."""

import pytest

from celery_redis_plus.errors import ServerOutOfMemory
from tests.support.invariants import violations
from tests.support.waiting import wait_until

TASKS = 200
CONFIG = {"task_acks_late": True, "task_ignore_result": True}


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_publishers_hear_of_it_and_workers_drain_the_queue_also_one_that_starts_meanwhile(
    pool, start_server, celery_app, celery_worker, notes
):
    server = start_server({"maxmemory-policy": "noeviction"})
    app = celery_app("configured", server.url(), **CONFIG)
    with server.client() as client:
        for number in range(TASKS):
            app.send_task("c.note", ["full", str(number)], retry=False)
        client.config_set("maxmemory", "1mb")
        for retry in (False, True):
            with pytest.raises(ServerOutOfMemory, match="maxmemory"):
                app.send_task("c.note", ["full", "refused"], retry=retry)

        worker = celery_worker("configured", server.url(), pool=pool, config=CONFIG)
        notes.wait_for("full", TASKS, 60, worker.tail)
        wait_until(lambda: not client.keys("message:*"), 10, lambda: client.keys("*"))
        assert "please report it" not in worker.log()
        assert "Traceback" not in worker.log()

        # Nobody asks again and again whether there is room by now.
        assert client.info("errorstats")["errorstat_OOM"]["count"] < 100

        client.config_set("maxmemory", "0")
        app.send_task("c.note", ["full", "again"], retry=False)
        ran = notes.wait_for("full", TASKS + 1, 30, worker.tail)
        assert dict(ran) == {**{str(number): 1 for number in range(TASKS)}, "again": 1}
        assert worker.stop() == 0
        assert violations(client) == []
