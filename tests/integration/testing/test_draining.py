"""`drain`, workers in a thread, and the app's settings before and after a test."""

from urllib.parse import urlsplit

import celery
import pytest

from celery_redis_plus.testing import EmbeddedServer, drain, enqueued, pointed_at, running_worker
from tests.support.apps import plain_url
from tests.support.waiting import PATIENCE_S, wait_until


def test_drain_runs_what_tasks_enqueue(app):
    @app.task(name="count_down", shared=False)
    def count_down(number):
        if number:
            count_down.delay(number - 1)

    count_down.delay(5)
    assert drain() == 6


@pytest.mark.parametrize("way", ["a route", "queue=", "a task that runs"])
def test_drain_runs_tasks_in_queues_that_no_setting_names(app, way):
    ran = []
    app.conf.task_routes = {"routed.*": {"queue": "orders"}}

    @app.task(name="routed.ship", shared=False)
    def ship():
        ran.append(ship.request.delivery_info["routing_key"])

    @app.task(name="starts.routed", shared=False)
    def start():
        ran.append(start.request.delivery_info["routing_key"])
        ship.apply_async(queue="late")

    if way == "a route":
        ship.delay()
    elif way == "queue=":
        ship.apply_async(queue="mails")
    else:
        start.delay()
    expected = {"a route": ["orders"], "queue=": ["mails"], "a task that runs": ["celery", "late"]}[way]
    assert (drain(), ran) == (len(expected), expected)


def test_drain_waits_for_the_worker_that_runs(app, add):
    with running_worker(app):
        results = [add.delay(number) for number in range(20)]
        drain()
        assert [result.result for result in results] == list(range(20))
        assert enqueued() == []


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_task_with_a_countdown_runs_in_each_of_the_workers_of_a_process(app, pool):
    ran = []

    @app.task(name="note", shared=False)
    def note(number):
        ran.append(number)

    for number in range(3):
        with running_worker(app, pool=pool):
            note.apply_async((number,), countdown=0.01)
            # Without a wakeup or a timer, 10 s.
            wait_until(lambda number=number: ran == list(range(number + 1)))


def test_drain_tells_what_is_left(app, add):
    add.delay(1)
    with app.connection_for_read() as connection:
        held = connection.SimpleQueue("celery").get(timeout=PATIENCE_S)
        add.delay(2)
        with pytest.raises(AssertionError) as raised:
            drain(timeout=0.5)
        held.ack()
    assert str(raised.value).startswith("drain() is not done after 0.5 s:\n  celery: 1 ready, 1 unacked, 1 consumers")


def test_a_failed_task_is_done(app):
    @app.task(name="fail", shared=False)
    def fail():
        raise ValueError("no")

    result = fail.delay()
    assert drain() == 1
    assert result.state == "FAILURE"


def test_an_app_has_its_own_settings_again(broker_url, monkeypatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://of.the.environment/3")
    other = celery.Celery("other", broker="redis://production.example/0", set_as_current=False)
    other.conf.task_always_eager = True
    before = other.conf.broker_url, other.conf.result_backend, other.conf.task_always_eager
    # One of this name may be left by another test.
    current = celery.current_app._get_current_object()  # noqa: SLF001 - the one behind the proxy
    with pointed_at(other, broker_url, plain_url(broker_url, 1)):
        assert other.connection_for_write().port == urlsplit(broker_url).port
        assert celery.current_app._get_current_object() is other  # noqa: SLF001 - as above
        other.send_task("anything")
    assert (other.conf.broker_url, other.conf.result_backend, other.conf.task_always_eager) == before
    assert before[0] == "redis://of.the.environment/3"
    assert celery.current_app._get_current_object() is current is not other  # noqa: SLF001 - as above


def test_a_server_that_was_emptied_is_met_as_a_new_one(app, add, caplog):
    with EmbeddedServer() as server:
        for _ in range(3):
            with server.client() as client:
                client.flushdb()
            with pointed_at(app, server.url(), server.url(1, "redis")):
                result = add.delay(1)
                assert (drain(), result.get(timeout=PATIENCE_S)) == (1, 1)
    assert [record.getMessage() for record in caplog.records if "vanished" in record.getMessage()] == []


def test_a_second_server_is_met_with_new_connections(app, add):
    with EmbeddedServer() as server, pointed_at(app, server.url(), server.url(1, "redis")):
        add.delay(1)
        with server.client() as client:
            assert client.zcard("queue:{celery}") == 1
