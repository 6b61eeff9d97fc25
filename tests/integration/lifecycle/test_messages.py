"""Single messages by id: looked up, cancelled, rescheduled, moved."""

from __future__ import annotations

from datetime import timedelta

import pytest

import celery_redis_plus as crp
from celery_redis_plus.errors import InvalidEta, QueueNotFound
from tests.support.waiting import wait_until

INDEXED = {"broker_transport_options": {"event_log_index": True}}


@pytest.fixture
def app(life_app):
    app = life_app(settings=INDEXED)
    # Declares the queue.
    with app.connection_for_write() as connection:
        app.amqp.queues["celery"](connection.default_channel).declare()
    return app


def test_a_message_is_known_in_every_state(app, life_worker, tmp_path, paths, redis_client):
    flag = tmp_path / "go"
    app.send_task("life.end", ["success"], task_id="later", countdown=3600)
    app.send_task("life.end", ["rejected"], task_id="dead")
    app.send_task("life.end", ["failure"], task_id="failed")
    app.send_task("life.end", ["wait", str(flag)], task_id="runs")
    app.send_task("life.end", ["success"], task_id="waits")
    waiting = crp.message(app, "waits")
    assert (waiting.state, waiting.position, waiting.queue, waiting.task) == ("PENDING", 3, "celery", "life.end")
    settings = {**INDEXED, "task_acks_late": True, "worker_prefetch_multiplier": 1}
    worker = life_worker(pool="threads", concurrency=1, settings=settings)
    wait_until(lambda: getattr(crp.message(app, "runs"), "state", None) == "PROCESSING", 20, worker.tail)
    states = {name: crp.message(app, name).state for name in ("later", "dead", "failed", "runs", "waits")}
    assert states == {"later": "DELAYED", "dead": "DEAD", "failed": "FAILED", "runs": "PROCESSING", "waits": "PENDING"}
    runs, failed = crp.message(app, "runs"), crp.message(app, "failed")
    assert runs.deliveries == 1
    assert runs.holder.startswith(worker.name)
    assert runs.first_delivery_ms >= runs.published_ms
    assert (failed.reason, failed.error, failed.deliveries) == ("failure", "ValueError: as asked", 1)
    assert crp.message(app, "dead").reason == "rejected"
    assert crp.message(app, failed.id) == failed
    assert crp.message(app, "nobody") is None
    flag.touch()
    wait_until(lambda: crp.message(app, "waits").state == "COMPLETED", 20, worker.tail)
    done = crp.message(app, "runs")
    assert done.state == "COMPLETED"
    assert done.worked_ms >= 0
    assert [event.event for event in done.events] == ["published", "claimed", "acked"]


def test_without_an_index_a_finished_message_is_found_among_the_last_events(life_app, life_worker, paths):
    app = life_app()
    life_worker(pool="solo", concurrency=1)
    app.send_task("life.end", ["success"])
    wait_until(lambda: any(path[-1].event == "acked" for path in paths("celery").values()), 20)
    (tag,) = paths("celery")
    assert crp.message(app, tag).state == "COMPLETED"
    assert crp.message(app, tag[:-1] + "zz") is None


def test_lookups_take_a_fixed_number_of_commands_in_each_state(app, life_worker, redis_client, tmp_path):
    flag = tmp_path / "go"

    def publish(count, kind):
        for number in range(count):
            app.send_task("life.end", ["success"], task_id=f"{kind} delayed {number}", countdown=3600)
            app.send_task("life.end", ["success"], task_id=f"{kind} gone {number}")
            app.send_task("life.end", ["rejected"], task_id=f"{kind} dead {number}")

    def once(name, state):
        before = redis_client.info("stats")["total_commands_processed"]
        assert crp.message(app, name, queue="celery").state == state
        return redis_client.info("stats")["total_commands_processed"] - before

    def commands(name, state):
        # A worker's sweep and reports may be among the commands, on a busy machine again and again.
        return min(once(name, state) for _ in range(10))

    def state_of(name):
        return getattr(crp.message(app, name, queue="celery"), "state", None)

    publish(1, "few")
    settings = {**INDEXED, "task_acks_late": True, "worker_prefetch_multiplier": 1}
    worker = life_worker(pool="threads", concurrency=1, settings=settings)
    wait_until(lambda: state_of("few dead 0") == "DEAD", 20, worker.tail)
    few = {
        state: commands(f"few {kind} 0", state)
        for kind, state in (("delayed", "DELAYED"), ("gone", "COMPLETED"), ("dead", "DEAD"))
    }
    publish(300, "many")
    app.send_task("life.end", ["wait", str(flag)], task_id="runs")
    wait_until(lambda: state_of("runs") == "PROCESSING", 100, worker.tail)
    for number in range(300):
        app.send_task("life.end", ["success"], task_id=f"ready {number}")
    for kind, state in (("delayed", "DELAYED"), ("gone", "COMPLETED"), ("dead", "DEAD")):
        assert commands(f"many {kind} 150", state) <= few[state] + 5
    assert commands("runs", "PROCESSING") <= few["DELAYED"] + 5
    assert commands("ready 200", "PENDING") <= few["DELAYED"] + 5
    flag.touch()


def test_a_ready_or_delayed_message_is_cancelled_and_told(app, paths, redis_client):
    app.send_task("life.end", ["success"], task_id="ready")
    app.send_task("life.end", ["success"], task_id="delayed", countdown=3600)
    app.send_task("life.end", ["success"], task_id="to the dead")
    assert crp.cancel(app, "ready")
    assert crp.cancel(app, "delayed")
    assert crp.cancel(app, "to the dead", dead_letter=True)
    assert not crp.cancel(app, "ready")
    assert crp.message(app, "ready").state == "FAILED"
    assert (crp.message(app, "to the dead").state, crp.message(app, "to the dead").reason) == ("DEAD", "cancelled")
    ends = sorted(path[-1].event for path in paths("celery").values())
    assert ends == ["cancelled", "cancelled", "dead_lettered"]
    assert len(redis_client.keys("message:*")) == 1


def test_a_claimed_message_cannot_be_cancelled(app, redis_client):
    app.send_task("life.end", ["success"], task_id="claimed")
    with app.connection_for_write() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        assert queue.get() is not None
        assert not crp.cancel(app, "claimed")
        assert not crp.reschedule(app, "claimed", 5)
        assert crp.move(app, "claimed", "celery") is None


def test_a_message_gets_another_time_both_ways(app, paths, redis_client):
    app.send_task("life.end", ["success"], task_id="one", priority=3)
    for never in (float("inf"), float("nan"), 1e300, timedelta(days=36_526)):
        with pytest.raises(InvalidEta, match="is out of range; allowed is up to 3155760000 s from now"):
            crp.reschedule(app, "one", never)
    assert crp.reschedule(app, "one", timedelta(hours=1))
    later = crp.message(app, "one")
    assert later.state == "DELAYED"
    assert crp.reschedule(app, "one", 0)
    assert crp.message(app, "one").state == "PENDING"
    (path,) = paths("celery").values()
    assert [(event.event, event.reason) for event in path] == [
        ("published", None),
        ("delayed", "rescheduled"),
        ("promoted", "rescheduled"),
    ]
    assert path[1].delay == 3_600_000
    ((_, score),) = redis_client.zrange("queue:{celery}", 0, -1, withscores=True)
    assert score // 10**13 == 252


def test_a_message_moves_with_its_time_and_priority(app, paths, redis_client):
    app.send_task("life.end", ["success"], task_id="one", priority=3, countdown=3600)
    with pytest.raises(QueueNotFound, match="'nowhere' does not exist"):
        crp.move(app, "one", "nowhere")
    app.send_task("life.end", ["success"], queue="other")
    due = crp.message(app, "one").due_ms
    moved = crp.move(app, "one", "other")
    there = crp.message(app, moved)
    assert (there.queue, there.state, there.due_ms, there.task_id) == ("other", "DELAYED", due, "one")
    (left,) = paths("celery").values()
    assert (left[-1].event, left[-1].target) == ("moved", "other")
    assert paths("other")[moved][0].source_id == left[0].id
    assert float(redis_client.hget("message:{other}:" + moved, "score")) // 10**13 == 252


def test_a_revoke_removes_what_nobody_has(life_app, redis_client):
    app = life_app(revoke_removes=True)
    result = app.send_task("life.end", ["success"], countdown=3600)
    app.send_task("life.end", ["success"], countdown=3600)
    app.control.revoke(result.id)
    assert redis_client.zcard("delayed:{celery}") == 1
    result.revoke()
    assert redis_client.zcard("delayed:{celery}") == 1


def test_a_revoke_of_many_tasks_takes_one_connection(life_app, redis_client):
    app = life_app(revoke_removes=True)
    results = [app.send_task("life.end", ["success"], countdown=3600) for _ in range(20)]
    app.control.revoke("unknown")
    before = redis_client.info("stats")["total_connections_received"]
    app.control.revoke(result.id for result in results)

    assert redis_client.zcard("delayed:{celery}") == 0
    assert redis_client.info("stats")["total_connections_received"] - before <= 2


def test_a_delayed_task_is_found_without_an_index(life_app):
    app = life_app(event_log=False)
    app.send_task("life.end", ["success"], task_id="soon", countdown=60)
    app.send_task("life.end", ["success"], task_id="later", countdown=3600)
    found = crp.message(app, "later")
    assert (found.state, found.task_id, found.queue) == ("DELAYED", "later", "celery")
    assert crp.message(app, found.id) == found
    assert crp.message(app, "nobody") is None


def test_a_moved_task_is_followed_to_where_it_is_now(app):
    with app.connection_for_write() as connection:
        # Sorted behind the first queue, so that this one is looked into first.
        app.amqp.queues.select_add("other")(connection.default_channel).declare()
    app.send_task("life.end", ["success"], task_id="one", queue="celery")
    old = crp.message(app, "one").id
    new = crp.move(app, "one", "other")
    found = crp.message(app, "one")
    assert (found.id, found.queue, found.state) == (new, "other", "PENDING")
    moved = crp.message(app, old)
    assert (moved.state, moved.target) == ("MOVED", "other")
    assert crp.cancel(app, "one")
    found = crp.message(app, "one")
    assert (found.id, found.queue, found.state, found.events[-1].event) == (new, "other", "FAILED", "cancelled")
