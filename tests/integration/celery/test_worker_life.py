"""What happens to messages over a worker's life: warm shutdown, and tasks longer than the visibility timeout."""

import celery
import pytest

from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_warm_shutdown_gives_prefetched_messages_back_in_place(pool, celery_app, celery_worker, notes, redis_client):
    config = {"task_acks_late": True, "worker_prefetch_multiplier": 4}
    app = celery_app(**config)
    for number in range(6):
        app.send_task("c.wait", ["warm", str(number)])
    in_place = redis_client.zrange("queue:{celery}", 0, -1, withscores=True)
    worker = celery_worker(pool=pool, concurrency=1, config=config)
    wait_until(lambda: len(notes.started("warm")) == 1 and redis_client.zcard("messages_index:{celery}") == 4, 15, worker.tail)
    worker.signal(15)
    wait_until(lambda: "Warm shutdown" in worker.log(), 10, worker.tail)
    notes.go("warm")

    assert worker.wait(60) == 0
    # Threads begin their next ones while the worker stops; under Celery 5.6 all that were given to the pool.
    began = len(notes.done("warm"))
    assert notes.started("warm") == notes.done("warm")
    assert 1 <= began <= (4 if pool == "threads" else 3)
    assert redis_client.zrange("queue:{celery}", 0, -1, withscores=True) == in_place[began:]
    for tag, _ in in_place[began:]:
        assert not redis_client.hexists(b"message:{celery}:" + tag, "failed")


def test_task_longer_than_the_visibility_timeout_runs_once(celery_app, celery_worker, notes, redis_client):
    config = {"task_acks_late": True, "broker_transport_options": {"visibility_timeout": 3}}
    # The second worker would take the message over.
    worker = celery_worker(config=config)
    celery_worker(config=config)
    celery_app(**config).send_task("c.note", ["long", "task", 4.5])
    ran = notes.wait_for("long", 1, 20, worker.tail)
    wait_until(lambda: not redis_client.exists("messages_index:{celery}"), message=worker.tail)

    assert ran == {"task": 1}
    assert notes.started("long") == ["task"]


def test_a_solo_worker_keeps_nothing_behind_a_long_task(celery_app, celery_worker, notes, redis_client):
    config = {"worker_prefetch_multiplier": 1}
    app = celery_app(**config)
    for number in range(10):
        app.send_task("c.add", [number, 1])
    app.send_task("c.wait", ["long", "task"])
    for number in range(3):
        app.send_task("c.note", ["after", str(number)])
    worker = celery_worker(config=config, concurrency=1)
    wait_until(lambda: notes.started("long") == ["task"], 15, worker.tail)
    # The short tasks before it had the worker claim ahead.
    wait_until(
        lambda: redis_client.zcard("queue:{celery}") == 3 and not redis_client.exists("messages_index:{celery}"), 10, worker.tail
    )
    notes.go("long")
    assert notes.wait_for("after", 3, 15, worker.tail) == {"0": 1, "1": 1, "2": 1}
    assert notes.started("after") == ["0", "1", "2"]


def test_a_sleeping_worker_hears_of_its_signal(celery_app, celery_worker, notes):
    config = {"broker_transport_options": {"polling_interval": 300}}
    worker = celery_worker(app="tests.integration.celery_patches.sleepy_app", config=config, options=("--without-heartbeat",))
    celery_app(**config).send_task("c.note", ["before", "sleep"])
    notes.wait_for("before", 1, 15, worker.tail)
    worker.signal(15)
    # Something of Celery's wakes it every ten seconds or so.
    assert worker.wait(8) == 0


def test_a_signal_that_comes_as_a_turn_begins_is_not_slept_through(celery_app, celery_worker, notes):
    config = {"broker_transport_options": {"polling_interval": 300}}
    worker = celery_worker(app="tests.integration.celery_patches.signalled_app", config=config, options=("--without-heartbeat",))
    celery_app(**config).send_task("c.note", ["before", "signal"])
    notes.wait_for("before", 1, 15, worker.tail)
    assert worker.wait(8) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_worker_without_prefetch_claims_again_when_a_task_ends(pool, celery_app, celery_worker, notes):
    """Celery looks at what runs before each delivery, and its loop sleeps for up to two seconds without an event."""
    if pool == "gevent" and celery.VERSION < (5, 7):
        pytest.skip("Celery 5.6 takes the number of busy greenlets for their limit: such a worker takes no task")
    config = {"worker_disable_prefetch": True}
    worker = celery_worker(pool=pool, concurrency=2, config=config)
    app = celery_app(**config)
    began = machine_time()
    for number in range(20):
        app.send_task("c.note", ["next", str(number), 0.1])
    notes.wait_for("next", 20, 30, worker.tail)
    # Two tasks every two seconds, when nothing but the end of the loop's sleep makes it look.
    assert machine_time() - began < 10


def test_threads_end_tasks_while_their_worker_looks_through_its_requests(celery_app, celery_worker, notes):
    """A worker whose connection is lost does so, and ended with "Set changed size during iteration" (Celery's issue 7162)."""
    worker = celery_worker(app="tests.integration.celery.looking_app", pool="threads", concurrency=4)
    app = celery_app()
    for number in range(3):
        app.send_task("c.wait", ["others", str(number)])
    app.send_task("c.look", [3])
    assert notes.wait_for("look", 1, 20, worker.tail) == {"whole": 1}


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_pool_of_one_size_is_not_to_be_scaled(pool, celery_app, celery_worker, redis_client):
    app = celery_app()
    for number in range(5):
        app.send_task("c.add", [number, 1])
    with pytest.raises(RuntimeError, match=r"--autoscale=4,1: a pool of .* cannot grow"):
        celery_worker(pool=pool, options=("--autoscale", "4,1"))
    assert redis_client.zcard("queue:{celery}") == 5
    assert not redis_client.exists("dead:{celery}")


def test_a_prefork_pool_is_scaled_to_its_work(celery_app, celery_worker, notes):
    worker = celery_worker(pool="prefork", options=("--autoscale", "4,1"))
    app = celery_app()
    for number in range(4):
        app.send_task("c.wait", ["many", str(number)])
    wait_until(lambda: len(notes.started("many")) == 4, 30, worker.tail)
    notes.go("many")
    wait_until(lambda: len(notes.done("many")) == 4, 20, worker.tail)
    worker.signal(15)
    assert worker.wait(30) == 0
