"""A task that expired is REVOKED for everybody who waits for it, wherever it expired."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial

import pytest
from celery import chord, group
from celery.events import EventReceiver
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import allow_join_result
from celery.signals import before_task_publish
from kombu import Consumer, Queue

from celery_redis_plus.broker.dead_letters.store import DeadLetters
from tests.support.apps import JOURNAL_DB
from tests.support.waiting import wait_until

POOLS = ["prefork", "solo", "threads", "gevent"]


@pytest.fixture
def config(server):
    return {"result_backend": server.url(JOURNAL_DB, "redis"), "worker_prefetch_multiplier": 1}


@pytest.fixture
def app(celery_app, config):
    app = celery_app(**config)
    yield app
    # Results that are collected later would use the connection again.
    gc.collect()
    app.backend.result_consumer.stop()
    # What is still collected later has nothing to unsubscribe from.
    app.backend.result_consumer.cancel_for = lambda _: None
    app.backend.client.close()


def revoked_after(result, since, timeout=6):
    """Return how many seconds after `since` the result said that the task was revoked."""
    with pytest.raises(TaskRevokedError, match="expired"), allow_join_result():
        result.get(timeout=timeout)
    return time.time() - since


@pytest.mark.parametrize("pool", POOLS)
def test_whoever_waits_for_an_expired_task_hears_of_it_within_a_second(pool, app, config, celery_worker, notes):
    worker = celery_worker(pool=pool, concurrency=1, config=config)
    for number in range(3):
        app.send_task("c.note", ["busy", str(number), 0.8])
    began = time.time()
    sent = {
        "before its eta": (app.send_task("c.add", [1, 1], countdown=2, expires=1), 1),
        "published too late": (app.send_task("c.add", [1, 1], expires=-1), 0),
        "in a backlog": (app.send_task("c.add", [1, 1], expires=1.2), 1.2),
        "in a queue that nobody consumes": (app.send_task("c.add", [1, 1], expires=0.5, queue="unattended"), 0.5),
    }
    for how, (result, expires_s) in sorted(sent.items(), key=lambda item: item[1][1]):
        assert expires_s <= revoked_after(result, began) + 0.01 < expires_s + 1.01, (how, worker.tail())
    assert not worker.log().count("Received task: c.add")
    with app.connection_for_read() as connection:
        session = connection.default_channel.session
        letters = DeadLetters(session.commands, session.keys)
        assert [letter.reason for letter in letters.all("celery")] == ["expired"] * 3
        assert [letter.reason for letter in letters.all("unattended")] == ["expired"]


@pytest.mark.parametrize("countdown", [None, 0.3])
def test_a_task_of_a_publisher_whose_clock_is_ahead_is_revoked_as_well(countdown, app, config, celery_worker):
    """Celery writes the moment by the publisher's clock, and a time to live, which the server counts: that ends first here."""
    worker = celery_worker(pool="solo", config=config)
    ahead = timedelta(seconds=30)

    def shift(headers, **_):
        headers["expires"] = (datetime.fromisoformat(headers["expires"]) + ahead).isoformat()

    app.send_task("c.note", ["busy", "0", 1.2])
    began = time.time()
    with shifted(shift):
        result = app.send_task("c.add", [1, 1], expires=0.5, countdown=countdown)
    assert revoked_after(result, began) < 2, worker.tail()


@contextmanager
def shifted(change):
    before_task_publish.connect(change, weak=False)
    try:
        yield
    finally:
        before_task_publish.disconnect(change)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_chords_and_groups_hear_of_a_member_that_expired(pool, app, config, celery_worker):
    celery_worker(pool=pool, concurrency=1, config=config)
    for number in range(3):
        app.send_task("c.note", ["busy", str(number), 0.4])
    began = time.time()
    late = app.signature("c.add", args=(1, 1)).set(expires=0.3)
    body = app.signature("c.add", args=(0,), kwargs={})
    result = chord([late, app.signature("c.add", args=(2, 2))], body, app=app).apply_async()
    members = group([late, app.signature("c.add", args=(2, 2))], app=app).apply_async()
    with allow_join_result(), pytest.raises((ChordError, TaskRevokedError), match="expired"):
        result.get(timeout=8)
    with allow_join_result(), pytest.raises(TaskRevokedError, match="expired"):
        members.get(timeout=8)
    assert time.time() - began < 4


def test_an_expired_task_sends_the_event_and_the_signal_of_a_revoked_one(app, config, celery_worker, redis_client):
    worker = celery_worker(pool="solo", config=config, options=("-E",))
    seen = []
    with app.connection_for_read() as connection:
        receiver = EventReceiver(connection, handlers={"task-revoked": seen.append}, app=app)
        (consumer,) = receiver.get_consumers(partial(Consumer, connection.default_channel), connection.default_channel)
        with consumer:
            app.send_task("c.add", [1, 1], task_id="late", expires=-1)
            wait_until(lambda: _drain(connection) or seen, 10, worker.tail)
    assert (seen[0]["uuid"], seen[0]["expired"], seen[0]["terminated"]) == ("late", True, False)
    assert "Discarding revoked task: c.add[late]" in worker.log()


def test_a_replayed_expired_task_runs_in_the_worker_that_revoked_it(app, config, celery_worker, notes):
    worker = celery_worker(pool="solo", config=config)
    result = app.send_task("c.note", ["again", "once"], expires=-1)
    revoked_after(result, time.time())
    with app.connection_for_read() as connection:
        session = connection.default_channel.session
        letters = DeadLetters(session.commands, session.keys)
        [letter] = wait_until(lambda: letters.page("celery"))
        assert letters.replay(letter)
    notes.wait_for("again", 1, 10, worker.tail)


def test_a_dead_letter_exchange_does_not_bring_an_expired_task_to_run(app, config, celery_worker, notes, redis_client):
    retry = Queue(
        "retry", queue_arguments={"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "celery"}
    )
    with app.connection_for_write() as connection:
        retry(connection.default_channel).declare()
    worker = celery_worker(pool="solo", config=config)
    result = app.send_task("c.note", ["never", "ran"], expires=0.2, queue=retry)
    revoked_after(result, time.time())
    wait_until(lambda: worker.log().count("Discarding revoked task: c.note") == 2, 10, worker.tail)
    assert notes.started("never") == []


def test_a_task_whose_queue_has_a_ttl_goes_on_and_is_not_revoked(app, config, celery_worker, notes):
    retry = Queue(
        "retry", queue_arguments={"x-message-ttl": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "celery"}
    )
    with app.connection_for_write() as connection:
        retry(connection.default_channel).declare()
    worker = celery_worker(pool="solo", config=config)
    result = app.send_task("c.add", [1, 1], expires=60, queue=retry)
    assert result.get(timeout=10) == 2
    assert "revoked" not in worker.log()


def test_a_worker_without_the_task_leaves_it_to_one_that_has_it(app, config, celery_worker, start_worker, broker_url):
    for _ in range(2):
        start_worker(broker=broker_url, pool="solo", queues=("other",))
    worker = celery_worker(pool="solo", config=config)
    for _ in range(3):
        began = time.time()
        assert revoked_after(app.send_task("c.add", [1, 1], expires=-1, queue="unattended"), began) < 1, worker.tail()


def test_expired_tasks_that_no_worker_has_do_not_delay_those_of_others(app, config, celery_worker, redis_client):
    for _ in range(120):
        app.send_task("other.gone", expires=-60, queue="unattended", ignore_result=True)
    worker = celery_worker(pool="solo", config=config)
    wait_until(lambda: redis_client.zcard("expired") == 120, 20, lambda: redis_client.zcard("expired"))
    # They are too old for workers to wake each other for them.
    then = int((time.time() - 30) * 1000)
    for key in redis_client.keys("expired_task:*"):
        redis_client.hset(key, "died", then)
    redis_client.zadd("expired_names", {"other.gone": then}, xx=True)
    for _ in range(3):
        began = time.time()
        assert revoked_after(app.send_task("c.add", [1, 1], expires=-1, queue="unattended"), began) < 2, worker.tail()
    wait_until(lambda: redis_client.zcard("expired") == 120)


def test_the_outbox_keeps_no_task_that_was_revoked_and_none_for_ever(app, config, celery_worker, redis_client):
    celery_worker(pool="solo", config=config)
    revoked_after(app.send_task("c.add", [1, 1], expires=-1), time.time())
    wait_until(lambda: set(redis_client.keys("expired*")) <= {b"expired_wakeup"})


def _drain(connection):
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.1)
