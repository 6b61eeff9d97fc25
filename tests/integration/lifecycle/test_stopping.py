"""A worker that is told to stop: what waits goes back at once, what runs has its time, and the events tell it."""

from __future__ import annotations

import signal
import time

import pytest

from celery_redis_plus.keys import Keys
from tests.support.events import event_violations
from tests.support.waiting import wait_until

RUNNING, WAITING = 2, 4
LATE = {"task_acks_late": True, "worker_prefetch_multiplier": 3}


def settings(config=None, **options):
    return {**LATE, **(config or {}), "broker_transport_options": {"visibility_timeout": 300, **options}}


@pytest.fixture
def busy(life_app, life_worker, paths, redis_client, tmp_path):
    """Start a worker with two running tasks and four that wait in it; return it, the flag that ends the tasks, and the app."""

    def start(pool, **options):
        flag = tmp_path / "end"
        app = life_app(settings=settings(**options))
        running = 1 if pool == "solo" else RUNNING
        for number in range(running + WAITING):
            app.send_task("life.end", ["wait", str(flag)], task_id=f"{number}")
        pidfile = f"--pidfile={tmp_path / 'worker.pid'}"
        worker = life_worker(pool=pool, concurrency=running, settings=settings(**options), options=(pidfile,))
        held = 3 * running
        wait_until(lambda: redis_client.zcard("messages_index:{celery}") == held, 20, worker.tail)
        # Solo and greenlets deliver what they can run, and greenlets one more, which waits for a free one.
        received = {"solo": 1, "gevent": RUNNING + 1, "eventlet": RUNNING + 1}.get(pool, held)
        wait_until(lambda: worker.tail(400).count("received") >= received, 20, worker.tail)
        if pool != "solo":
            # Celery's cold shutdown ends only tasks of which the worker knows that they have begun, and waits for the others.
            inspect = app.control.inspect(timeout=1, limit=1)
            wait_until(lambda: sum(map(len, (inspect.active() or {}).values())) == running, 20, worker.tail)
        return worker, flag, app

    return start


def ready(client):
    return client.zcard("queue:{celery}")


def returns(paths):
    return [event for path in paths("celery").values() for event in path if event.event == "requeued"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_running_tasks_have_the_graceful_timeout_and_then_everything_is_pending_again(pool, busy, paths, redis_client):
    worker, _, _ = busy(pool, graceful_timeout=1)
    order = list(paths("celery"))
    worker.signal(signal.SIGTERM)
    began = time.monotonic()
    assert worker.wait(60) == 0, worker.tail()
    assert time.monotonic() - began >= 1
    assert redis_client.zrange("queue:{celery}", 0, -1) == [tag.encode() for tag in order]
    assert {event.reason for event in returns(paths)} == {"handed_back"}
    assert not any(redis_client.hexists("message:{celery}:" + tag, "failed") for tag in order)
    assert event_violations(redis_client, Keys(), "celery") == []


def test_what_ends_within_the_timeout_is_acked_and_what_waits_goes_back_at_once(busy, paths, redis_client):
    worker, flag, _ = busy("prefork", graceful_timeout=60)
    worker.signal(signal.SIGTERM)
    # While the two still run.
    wait_until(lambda: ready(redis_client) == WAITING, 10, worker.tail)
    flag.touch()
    assert worker.wait(60) == 0, worker.tail()
    ends = sorted(path[-1].event for path in paths("celery").values())
    assert ends == ["acked"] * RUNNING + ["requeued"] * WAITING
    assert ready(redis_client) == WAITING
    assert redis_client.zcard("messages_index:{celery}") == 0
    assert all(
        redis_client.hget("message:{celery}:" + tag.decode(), "seen") for tag in redis_client.zrange("queue:{celery}", 0, -1)
    )


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_second_signal_ends_the_wait_and_leaves_no_pidfile(pool, busy, redis_client, tmp_path):
    """Where it stays, the next worker may not start: its number may be another process's by then."""
    worker, _, _ = busy(pool, graceful_timeout=300)
    assert (tmp_path / "worker.pid").exists()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.tail(400), 10, worker.tail)
    worker.signal(signal.SIGTERM)
    worker.wait(20)
    assert ready(redis_client) == RUNNING + WAITING
    assert not (tmp_path / "worker.pid").exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", [signal.SIGTERM, None])
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_celerys_own_cold_shutdown_returns_everything_too(pool, first, busy, redis_client, paths):
    worker, _, _ = busy(pool)
    running = 1 if pool == "solo" else RUNNING
    if first is not None:
        worker.signal(first)
        wait_until(lambda: "Warm shutdown" in worker.tail(400), 10, worker.tail)
        if pool == "prefork":
            wait_until(lambda: ready(redis_client) == WAITING, 10, worker.tail)
    worker.signal(signal.SIGQUIT)
    worker.wait(20)
    assert ready(redis_client) == running + WAITING
    assert not any(path[-1].event == "acked" for path in paths("celery").values())
    assert {event.reason for event in returns(paths)} == {"handed_back"}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_soft_shutdown_begins_nothing_more(pool, busy, redis_client):
    """What would begin in it would be ended with the process, and lost with early acks."""
    worker, flag, _ = busy(pool, config={"worker_soft_shutdown_timeout": 4})
    worker.signal(signal.SIGQUIT)
    wait_until(lambda: "Initiating Soft Shutdown" in worker.tail(400), 10, worker.tail)
    if pool == "threads":
        wait_until(lambda: ready(redis_client) == WAITING, 10, worker.tail)
    flag.touch()
    worker.wait(40)
    assert ready(redis_client) == WAITING
    assert redis_client.zcard("messages_index:{celery}") == 0
