"""Workers whose pool has greenlets: maintenance and the consumer share one thread with the tasks, and a socket has one reader."""

import time

import pytest
from kombu import Connection, Consumer, Queue

from tests.support.waiting import wait_until

POOLS = ["gevent", pytest.param("eventlet", marks=pytest.mark.weekly)]


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_claim_is_renewed_while_its_task_waits_and_nothing_else_happens(pool, celery_app, celery_worker, notes, broker_url):
    options = {"visibility_timeout": 3}
    config = {"task_acks_late": True, "worker_enable_remote_control": False, "broker_transport_options": options}
    worker = celery_worker(pool=pool, config=config, options=("--without-heartbeat",))
    celery_app(**config).send_task("c.wait", ["lease", "1"])
    wait_until(lambda: notes.started("lease"), 15, worker.tail)
    taken = []
    with Connection(broker_url, transport_options=options) as other:
        with Consumer(other, [Queue("celery")], on_message=taken.append):
            until = time.monotonic() + 4.5
            while time.monotonic() < until and not taken:
                try:
                    other.drain_events(timeout=0.5)
                except TimeoutError:
                    continue
        assert taken == []
        notes.go("lease")
        notes.wait_for("lease", 1, message=worker.tail)


@pytest.mark.parametrize("pool", POOLS)
def test_greenlets_that_settle_and_list_leave_the_consumers_connection_alone(pool, celery_app, celery_worker, notes):
    worker = celery_worker(pool=pool, concurrency=4, config={"task_acks_late": True})
    app = celery_app(task_acks_late=True)
    for number in range(3):
        app.send_task("c.wait", ["busy", str(number)])
        app.send_task("c.note", ["later", str(number)], countdown=0.5)
    wait_until(lambda: len(notes.started("busy")) == 3, 15, worker.tail)
    notes.wait_for("later", 3, message=worker.tail)
    app.send_task("c.note", ["far", "1"], countdown=100)
    for _ in range(3):
        (listed,) = wait_until(lambda: app.control.inspect(timeout=0.5, limit=1).scheduled(), message=worker.tail).values()
        assert [entry["request"]["name"] for entry in listed] == ["c.note"]
        for number in range(5):
            app.send_task("c.note", ["short", str(number)])
    notes.go("busy")
    notes.wait_for("busy", 3, message=worker.tail)
    notes.wait_for("short", 5, message=worker.tail)
    assert worker.stop() == 0
    for complaint in ("broker lost", "Second simultaneous", "Signal handler", "mainloop", "Traceback", "please report it"):
        assert complaint not in worker.log()


@pytest.mark.parametrize("pool", POOLS)
def test_remote_control_answers_again_when_its_own_connection_was_cut(pool, celery_app, celery_worker, redis_client):
    worker, app = celery_worker(pool=pool), celery_app()
    wait_until(lambda: app.control.ping(timeout=10, limit=1), 20, worker.tail)
    # Without gossip, nothing else of the worker listens to a broadcast.
    [stream] = [client["id"] for client in redis_client.client_list() if client["name"].endswith(":streams")]
    redis_client.client_kill_filter(_id=stream)
    wait_until(lambda: app.control.ping(timeout=10, limit=1), 20, worker.tail)
    assert "Connection to broker lost" not in worker.log()
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("pool", ["eventlet", pytest.param("gevent", marks=pytest.mark.weekly)])
def test_tasks_that_are_terminated_before_they_have_a_place_leave_the_broker(
    pool, celery_app, celery_worker, notes, redis_client
):
    config = {"task_acks_late": True}
    worker, app = celery_worker(pool=pool, concurrency=2, config=config), celery_app(**config)
    names = [f"ended{number}" for number in range(4)]
    for name in names:
        app.send_task("c.wait", ["ended", name], task_id=name)
    wait_until(lambda: len(notes.started("ended")) == 2, 15, worker.tail)
    # One more than it has places for waits in the pool.
    wait_until(lambda: worker.log().count("received") >= 3, 10, worker.tail)
    app.control.revoke(names, terminate=True, reply=True, timeout=10, limit=1)
    wait_until(lambda: not redis_client.exists("messages_index:{celery}", "queue:{celery}"), 15, worker.tail)
    assert app.control.inspect(timeout=2, limit=1).active().popitem()[1] == []
    assert notes.done("ended") == []
