"""`celery inspect`, `celery control` and monitoring, with a running worker (issue A, Shows 2)."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_redis_plus import reschedule
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

#: Seconds that an answer may take; it takes some milliseconds.
ANSWER_S = 5


@pytest.fixture
def worker(celery_worker):
    return celery_worker("configured", pool="prefork", options=["--task-events"], name="one")


@pytest.fixture
def app(celery_app):
    return celery_app("configured")


@pytest.fixture
def node(worker, app):
    [answer] = app.control.ping(timeout=ANSWER_S, limit=1)
    [name] = answer
    assert answer[name] == {"ok": "pong"}
    return name


@pytest.fixture
def inspect(app, node):
    """Ask the one worker; an answer comes without waiting for others."""
    return app.control.inspect([node], timeout=ANSWER_S, limit=1)


def test_inspect_answers_what_the_worker_has(app, node, inspect, notes, redis_client, worker):
    for number in range(6):
        app.send_task("c.wait", ["inspected", str(number)])
    wait_until(lambda: len(notes.started("inspected")) == 2, 10, worker.tail)
    active, reserved = inspect.active()[node], inspect.reserved()[node]
    queues, stats = inspect.active_queues()[node], inspect.stats()[node]
    registered, conf = inspect.registered()[node], inspect.conf()[node]
    notes.go("inspected")

    assert {one["args"][1] for one in active} == {"0", "1"}
    assert {one["args"][1] for one in reserved} == {"2", "3", "4", "5"}
    for one in active + reserved:
        assert one["delivery_info"] == {"exchange": "", "routing_key": "celery", "priority": 0, "redelivered": False}
    assert [queue["name"] for queue in queues] == ["celery"]
    assert queues[0]["queue_arguments"] is None
    assert stats["broker"]["transport"] in {"redisplus", "redispluss"}
    assert stats["prefetch_count"] == 8
    assert "c.note" in registered
    assert conf["broker_url"].startswith("redisplus")
    notes.wait_for("inspected", 6, 10, worker.tail)


def test_inspect_lists_what_the_broker_holds(app, node, inspect):
    due = datetime.now(UTC) + timedelta(hours=1)
    later = app.send_task("c.add", [1, 2], {"z": 3}, eta=due + timedelta(hours=1), priority=7)
    sooner = app.send_task("c.add", [1, 2], {"z": 3}, eta=due)
    app.send_task("c.add", [1, 2], eta=due, queue="another")
    with app.producer_pool.acquire() as producer:
        producer.publish("no task", routing_key="celery", headers={"x-delay": 3_600_000})
    listed = inspect.scheduled()[node]

    assert [one["request"]["id"] for one in listed] == [sooner.id, later.id]
    assert listed[0] == {
        "eta": due.isoformat(),
        "priority": 6,
        "request": {
            "id": sooner.id,
            "name": "c.add",
            "args": [1, 2],
            "kwargs": {"z": 3},
            "type": "c.add",
            "hostname": node,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {"exchange": "", "routing_key": "celery", "priority": 0, "redelivered": False},
            "worker_pid": None,
        },
    }
    assert listed[1]["request"]["delivery_info"]["priority"] == 7

    assert reschedule(app, later.id, 600)
    first = inspect.scheduled()[node][0]
    assert first["request"]["id"] == later.id
    assert 590 < (datetime.fromisoformat(first["eta"]) - datetime.now(UTC)).total_seconds() <= 600


def test_query_task_knows_tasks_in_hand_and_delayed_ones(app, node, inspect, notes, worker):
    later = app.send_task("c.add", [1, 2], countdown=3600)
    app.send_task("c.add", [1, 2], countdown=3600)
    running = app.send_task("c.wait", ["queried", "1"])
    wait_until(lambda: len(notes.started("queried")) == 1, 10, worker.tail)
    answer = inspect.query_task(later.id, running.id, "unknown")[node]
    one = inspect.query_task(later.id)[node]
    notes.go("queried")

    assert {task: state for task, (state, _) in answer.items()} == {later.id: "scheduled", running.id: "active"}
    assert answer[later.id][1] == inspect.scheduled()[node][0]["request"]
    assert list(one) == [later.id]


def test_inspect_lists_a_thousand_of_many_with_their_number(app, node, inspect, server):
    with app.producer_pool.acquire() as producer:
        for number in range(1100):
            app.send_task("c.note", ["n", str(number)], countdown=3600 + number, producer=producer)
    asked = machine_time()
    listed = inspect.scheduled()[node]

    assert machine_time() - asked < 2
    assert [one["request"]["args"][1] for one in listed] == [str(number) for number in range(1000)]
    assert {one["broker"]["delayed"] for one in listed} == {1100}


def test_control_commands_change_the_worker(app, node, inspect, notes, worker):
    control = app.control
    said = {"destination": [node], "reply": True, "timeout": ANSWER_S, "limit": 1}

    assert "ok" in control.rate_limit("c.add", "10/m", **said)[0][node]
    assert "ok" in control.pool_grow(1, **said)[0][node]
    assert "ok" in control.add_consumer("added", **said)[0][node]
    assert {queue["name"] for queue in inspect.active_queues()[node]} == {"celery", "added"}
    app.send_task("c.note", ["added", "1"], queue="added")
    notes.wait_for("added", 1, 10, worker.tail)
    assert "ok" in control.cancel_consumer("added", **said)[0][node]
    assert {queue["name"] for queue in inspect.active_queues()[node]} == {"celery"}

    control.revoke("revoked", **said)
    app.send_task("c.note", ["revoked", "1"], task_id="revoked")
    app.send_task("c.note", ["revoked", "2"])
    assert notes.wait_for("revoked", 1, 10, worker.tail) == {"2": 1}

    app.control.shutdown(destination=[node])
    assert worker.wait(60) == 0


def test_revoked_task_is_terminated(app, node, inspect, notes, worker, redis_client):
    app.send_task("c.wait", ["killed", "1"], task_id="killed")
    wait_until(lambda: notes.started("killed"), 10, worker.tail)
    app.control.revoke("killed", terminate=True, destination=[node])
    wait_until(lambda: not inspect.active()[node], 10, worker.tail)

    assert notes.done("killed") == []
    assert not redis_client.keys("message:{celery}:*")


def test_monitor_sees_a_task_from_sent_to_succeeded(app, node, worker):
    seen = []

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        # The first event is a heartbeat that the receiver asks for: from then on nothing can be missed.
        for number, _ in enumerate(receiver.consume(limit=None, timeout=10, wakeup=True)):
            if number == 0:
                app.send_task("c.add", [1, 2])
            if "task-succeeded" in seen:
                break

    tasks = [kind for kind in seen if kind.startswith("task-")]
    assert tasks == ["task-received", "task-started", "task-succeeded"]


def test_remote_control_leaves_no_reply_queues_behind(app, node, inspect, redis_client):
    assert inspect.ping()

    def left():
        return [key for key in redis_client.keys("*reply.celery.pidbox*") if redis_client.ttl(key) == -1]

    app.close()
    wait_until(lambda: not left(), message=left)
