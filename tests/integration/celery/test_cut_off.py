"""What a worker finds when it was cut off for longer than `connection_lost_grace`: others have its messages."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

CONFIG = {
    "task_acks_late": True,
    "worker_prefetch_multiplier": 4,
    "broker_transport_options": {"connection_lost_grace": 1, "visibility_timeout": 300},
    "broker_connection_retry_on_startup": True,
}
TOLD = "given to other consumers"


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("pool", [pytest.param("threads", marks=pytest.mark.weekly), "prefork", "solo"])
@pytest.mark.not_on("all", reason="a proxy leads to one server")
def test_waiting_tasks_are_not_begun_and_the_running_one_ends_and_is_acked(pool, celery_app, celery_worker, notes, redis_client):
    def unacked():
        return redis_client.zcard("messages_index:{celery}")

    with Proxy(lambda: redis_client.connection_pool.connection_kwargs["port"]) as proxy:
        cut = celery_worker(url=proxy.url(), pool=pool, concurrency=1, config=CONFIG)
        app = celery_app(**CONFIG)
        for number in range(4):
            app.send_task("c.wait", ["cut", str(number)])
        wait_until(lambda: len(notes.started("cut")) == 1 and unacked() >= (1 if pool == "solo" else 4), 10, cut.tail)
        heir = celery_worker(pool="threads", concurrency=4, config=CONFIG)
        wait_until(lambda: redis_client.zcard("heartbeats:{presence}") == 2)
        proxy.refuse()
        wait_until(lambda: "is lost" in heir.log(), 10, heir.tail)
        # The task that runs in the other one, too.
        wait_until(lambda: len(notes.started("cut")) == 5, 10, heir.tail)
        if pool == "threads":
            # The next one waits in the pool's own queue, and nobody can tell whose it is.
            notes.go("cut")
            wait_until(lambda: "is not begun and goes back" in cut.log(), 10, cut.tail)
        proxy.heal()
        if pool == "prefork":
            wait_until(lambda: TOLD in cut.log(), 15, cut.tail)
        notes.go("cut")
        wait_until(lambda: Counter(notes.done("cut")) == {"0": 2, "1": 1, "2": 1, "3": 1}, 10, cut.tail)
        wait_until(lambda: not redis_client.keys("message:{celery}:*"), 10, cut.tail)
        wait_until(lambda: TOLD in cut.log() or pool != "prefork", 10, cut.tail)
        assert cut.stop() == 0

    told = [line for line in cut.log().splitlines() if TOLD in line]
    assert len(told) <= 1
    assert "1 of them are being worked on" in "".join(told) or pool != "prefork"
    assert Counter(notes.started("cut")) == {"0": 2, "1": 1, "2": 1, "3": 1}


def test_a_task_begins_only_where_its_early_ack_can_leave(celery_app, celery_worker, notes, own_server):
    # With a shorter grace nobody could tell whose the waiting ones are, and they would go back for that.
    options = {"connection_lost_grace": 12, "visibility_timeout": 300, "socket_timeout": 1, "socket_connect_timeout": 1}
    config = {**CONFIG, "task_acks_late": False, "broker_transport_options": options}
    names = [str(number) for number in range(8)]
    app = celery_app(url=own_server.url(), **config)
    silent = celery_worker(url=own_server.url(), pool="threads", concurrency=1, config=config)
    for name in names:
        app.send_task("c.wait", ["early", name])
    wait_until(lambda: notes.started("early") == ["0"] and silent.log().count("received") >= 2, 10, silent.tail)
    own_server.freeze()
    wait_until(lambda: re.search("Connection to broker lost|Cannot connect to", silent.log()), 15, silent.tail)
    notes.go("early")
    wait_until(lambda: "is not begun and goes back: its ack cannot leave" in silent.log(), 10, silent.tail)
    silent.kill()
    own_server.thaw()
    heir = celery_worker(url=own_server.url(), pool="threads", concurrency=4, config=config)
    wait_until(lambda: set(notes.done("early")) >= set(names), 30, heir.tail)
    assert sorted(notes.started("early")) == names
