"""Tasks on fanout exchanges: every service runs them, also those that were down when they were sent."""

from __future__ import annotations

from collections import Counter

import pytest
from kombu import Exchange, Queue
from kombu.common import Broadcast

from tests.support.connection_kills import kill_connections
from tests.support.waiting import wait_until


def settings(name, **arguments):
    """A service with a queue of its own on the exchange of all services."""
    queue = {
        "exchange": "all-services",
        "exchange_type": "fanout",
        # Celery takes the queue's name where there is none (of a dict), and `fanout_patterns` would filter by it.
        "routing_key": "#",
        "exchange_durable": True,
        "queue_durable": True,
        "queue_arguments": arguments,
    }
    return {"task_queues": {name: queue}}


@pytest.fixture
def app(celery_app):
    return celery_app("configured")


def send(app, *entries):
    for entry in entries:
        app.send_task("c.note", ["all", entry], exchange="all-services", exchange_type="fanout", routing_key="all")


def ran(notes, name, count, worker):
    """Wait for `count` tasks in all; return how often each ran."""
    return Counter(wait_until(lambda: len(notes.done(name)) == count and notes.done(name), 10, worker.tail))


def test_a_durable_service_runs_what_was_sent_while_it_was_down(app, celery_worker, notes):
    durable = {"x-durable-subscriber": True}
    always = celery_worker("configured", name="always", config=settings("always"))
    sometimes = celery_worker("configured", name="sometimes", config=settings("sometimes", **durable))
    send(app, "1")
    assert ran(notes, "all", 2, always) == {"1": 2}
    assert sometimes.stop() == 0
    send(app, "2", "3")
    assert ran(notes, "all", 4, always) == {"1": 2, "2": 1, "3": 1}
    sometimes.start()
    assert ran(notes, "all", 6, sometimes) == {"1": 2, "2": 2, "3": 2}


def test_celerys_own_broadcast_queues_reach_every_worker_and_vanish_with_them(app, celery_worker, notes, redis_client):
    """A `Broadcast` has a queue with a random name for each process; a publisher declares one, too, which nobody consumes."""
    queue = {"exchange": "everybody", "exchange_type": "fanout", "routing_key": "#", "queue_auto_delete": True}
    workers = [
        celery_worker("configured", name=name, config={"task_queues": {f"bcast.{name}": queue}}) for name in ("one", "two")
    ]
    broadcast = Broadcast("everybody", exchange=Exchange("everybody", "fanout", durable=None))
    app.send_task("c.note", ["everybody", "1"], queue=broadcast)
    assert ran(notes, "everybody", 2, workers[0]) == {"1": 2}
    for worker in workers:
        assert worker.stop() == 0

    def consumed():
        return [key for key in redis_client.keys("*bcast.one*") + redis_client.keys("*bcast.two*") if b"producer:" not in key]

    wait_until(lambda: not consumed(), message=consumed)
    with app.connection_for_write() as connection:
        listed = connection.default_channel.fanout_subscribers("everybody")
    assert [one for one in listed if one.state == "live"] == []


def test_plain_kombu_subscribers_get_tasks_as_messages(app, celery_worker, notes):
    with app.connection_for_read() as connection:
        queue = Queue("watcher", Exchange("all-services", "fanout", durable=True), durable=True)
        got = []
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message.headers["task"])], no_ack=True):
            send(app, "1")
            connection.drain_events(timeout=5)
    assert got == ["c.note"]


def test_a_broadcast_task_that_runs_when_its_connection_breaks_is_not_run_again_and_those_behind_it_are(
    app, celery_worker, notes, server
):
    config = {**settings("cut"), "task_acks_late": True, "worker_prefetch_multiplier": 4}
    worker = celery_worker("configured", name="cut", pool="threads", concurrency=1, config=config)
    for entry in ("running", "waiting"):
        app.send_task("c.wait", ["cut", entry], exchange="all-services", exchange_type="fanout", routing_key="all")
    wait_until(lambda: notes.started("cut") == ["running"], 10, worker.tail)
    with server.client() as client:
        kill_connections(client)
    wait_until(lambda: "Connection to broker lost" in worker.log(), 10, worker.tail)
    app.send_task("c.wait", ["cut", "new"], exchange="all-services", exchange_type="fanout", routing_key="all", retry=True)
    notes.go("cut")
    assert ran(notes, "cut", 3, worker) == {"running": 1, "waiting": 1, "new": 1}
    assert notes.started("cut")[0] == "running"
