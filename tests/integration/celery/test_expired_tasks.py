"""A task that expired is REVOKED for everybody who waits for it, wherever it expired."""

from __future__ import annotations

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

from celery_redis_plus import counters
from tests.support.apps import JOURNAL_DB, close_results
from tests.support.dead_letters import dead_letters_of
from tests.support.waiting import wait_until

POOLS = ["prefork", "solo", pytest.param("threads", marks=pytest.mark.weekly), "gevent"]


@pytest.fixture
def config(server):
    return {"result_backend": server.url(JOURNAL_DB, "redis"), "worker_prefetch_multiplier": 1}


@pytest.fixture
def app(celery_app, config):
    app = celery_app(**config)
    yield app
    close_results(app)


def revoked(result):
    """Wait until the result says that the task was revoked."""
    with pytest.raises(TaskRevokedError, match="expired"), allow_join_result():
        result.get(timeout=15)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", POOLS)
def test_whoever_waits_for_an_expired_task_hears_of_it_before_the_backlog_is_done(pool, app, config, celery_worker, notes):
    worker = celery_worker(pool=pool, concurrency=1, config=config)
    for number in range(20):
        app.send_task("c.note", ["busy", str(number), 0.4])
    sent = {
        "before its eta": app.send_task("c.add", [1, 1], countdown=60, expires=1),
        "published too late": app.send_task("c.add", [1, 1], expires=-1),
        "in a backlog": app.send_task("c.add", [1, 1], expires=1.2),
    }
    for how, result in sent.items():
        with pytest.raises(TaskRevokedError, match="expired"), allow_join_result():
            result.get(timeout=20)
        assert len(notes.started("busy")) < 15, (how, worker.tail())
    with app.connection_for_read() as connection:
        assert dead_letters_of(connection.default_channel).page("celery") == []


def test_a_task_that_expires_where_nobody_consumes_is_revoked_by_the_next_worker_of_its_queue(app, config, celery_worker):
    """Others have a task of that name too, and other results: it is none of their business."""
    elsewhere = celery_worker(pool="solo", config=config, queues=("elsewhere",))
    result = app.send_task("c.add", [1, 1], expires=-1)
    wait_until(lambda: counters("celery", connection=app).expired == 1)
    app.send_task("c.add", [1, 1], queue="elsewhere").get(timeout=10)
    assert result.state == "PENDING"
    celery_worker(pool="solo", config=config)
    revoked(result)
    assert "Discarding" not in elsewhere.log()


def test_a_task_of_message_protocol_1_is_revoked_as_well(app, config, celery_worker, celery_app):
    celery_worker(pool="solo", config=config)
    old = celery_app(**config, task_protocol=1)
    for compression in (None, "gzip"):
        revoked(old.send_task("c.add", [1, 1], expires=-1, compression=compression))
    close_results(old)


@pytest.mark.sample(1)
@pytest.mark.parametrize("countdown", [None, 0.3])
def test_a_task_of_a_publisher_whose_clock_is_ahead_is_revoked_as_well(countdown, app, config, celery_worker, notes):
    """Celery writes the moment by the publisher's clock, and a time to live, which the server counts: that ends first here."""
    worker = celery_worker(pool="solo", config=config)
    ahead = timedelta(seconds=30)

    def shift(headers, **_):
        headers["expires"] = (datetime.fromisoformat(headers["expires"]) + ahead).isoformat()

    app.send_task("c.note", ["busy", "0", 1.2])
    # Before that the worker may claim the other task as well, in time.
    wait_until(lambda: notes.started("busy"), 10, worker.tail)
    with shifted(shift):
        result = app.send_task("c.add", [1, 1], expires=0.5, countdown=countdown)
    revoked(result)
    assert f"[{result.id}] succeeded" not in worker.log()


@contextmanager
def shifted(change):
    before_task_publish.connect(change, weak=False)
    try:
        yield
    finally:
        before_task_publish.disconnect(change)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_chords_and_groups_hear_of_a_member_that_expired(pool, app, config, celery_worker):
    celery_worker(pool=pool, concurrency=1, config=config)
    for number in range(3):
        app.send_task("c.note", ["busy", str(number), 0.8])
    late = app.signature("c.add", args=(1, 1)).set(expires=0.3)
    body = app.signature("c.add", args=(0,), kwargs={})
    result = chord([late, app.signature("c.add", args=(2, 2))], body, app=app).apply_async()
    members = group([late, app.signature("c.add", args=(2, 2))], app=app).apply_async()
    with allow_join_result(), pytest.raises((ChordError, TaskRevokedError), match="expired"):
        result.get(timeout=8)
    with allow_join_result(), pytest.raises(TaskRevokedError, match="expired"):
        members.get(timeout=8)


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


def _drain(connection):
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.1)
