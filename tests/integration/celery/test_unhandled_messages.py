"""Whatever a task's message or a worker's event holds, the worker that meets it goes on with the next one."""

from __future__ import annotations

import json
from contextlib import suppress
from uuid import uuid4

import kombu
import pytest

from celery_redis_plus.errors import CeleryRedisPlusError
from tests.support.dead_letters import dead_letters_of
from tests.support.servers import new_server
from tests.support.waiting import wait_until

#: Values of a header `id`, `task` and so on, and of the parts of a body.
VALUES = [None, 5, -1, True, "", "x", "\udcff", 1e308, 10**30, [], [1], [None, "a", {}], {}, {"a": 1}, {"a": {"b": [None]}}]
HEADERS = (
    "id", "task", "root_id", "parent_id", "group", "eta", "expires", "retries", "timelimit", "argsrepr", "origin", "lang",
    "shadow", "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps",
)  # fmt: skip
#: So many in a row are dead letters, and then the worker ends.
MOST_IN_A_ROW = 50
EMBEDDED = ("callbacks", "errbacks", "chain", "chord")
EVENT = {"type": "worker-heartbeat", "hostname": "other@h", "clock": 1, "timestamp": 1.0, "utcoffset": 0, "freq": 2.0, "pid": 1}


def headers_of(**changed):
    task_id = str(uuid4())
    return {"lang": "py", "task": "c.note", "id": task_id, "root_id": task_id, "retries": 0, **changed}


def odd_tasks():
    """Yield headers and a body of each."""
    for value in VALUES:
        for name in HEADERS:
            yield headers_of(**{name: value}), [["odd", "x"], {}, {}]
        yield headers_of(), value
        yield {}, value
        yield headers_of(), [value, {}, {}]
        yield headers_of(), [["odd", "x"], value, {}]
        yield headers_of(), [["odd", "x"], {}, value]
        for name in EMBEDDED:
            yield headers_of(), [["odd", "x"], {}, {name: value}]
        for name in ("task", "id", "args", "kwargs", "eta", "expires", "retries", "chord"):
            yield {}, {"task": "c.note", "id": str(uuid4()), "args": ["odd", "x"], "kwargs": {}, "retries": 0, name: value}


@pytest.fixture
def producer(broker_url):
    with kombu.Connection(broker_url) as connection:
        kombu.Queue("celery", kombu.Exchange("celery"), routing_key="celery")(connection.default_channel).declare()
        yield kombu.Producer(connection)


def send(producer, exchange, routing_key, headers, body):
    """Send what Celery would refuse to send, unless it is refused here as well."""
    with suppress(CeleryRedisPlusError):
        producer.publish(
            json.dumps(body), exchange=exchange, routing_key=routing_key, headers=headers, content_type="application/json",
            content_encoding="utf-8",
        )  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("pool", "acks_late"),
    [
        ("solo", True),
        ("prefork", True),
        pytest.param("solo", False, marks=pytest.mark.weekly),
        pytest.param("threads", True, marks=pytest.mark.weekly),
        pytest.param("prefork", False, marks=pytest.mark.weekly),
        pytest.param("gevent", True, marks=pytest.mark.weekly),
        pytest.param("eventlet", True, marks=pytest.mark.weekly),
    ],
)
def test_a_worker_goes_on_beside_every_odd_task(pool, acks_late, producer, celery_app, celery_worker, notes):
    backend = producer.connection.as_uri(include_password=True).replace("redisplus", "redis")
    config = {"task_acks_late": acks_late, "result_backend": backend, "worker_prefetch_multiplier": 8}
    app = celery_app(**config)
    app.send_task("c.note", ["good", "first"])
    for headers, body in odd_tasks():
        send(producer, "celery", "celery", headers, body)
    app.send_task("c.note", ["good", "last"])
    worker = celery_worker(pool=pool, concurrency=1, config=config)
    assert notes.wait_for("good", 2, 100, worker.tail) == {"first": 1, "last": 1}
    assert worker.running
    channel = producer.channel
    sizes = channel.queue_sizes("celery")
    wait_until(lambda: channel.queue_sizes("celery").unacked == 0, 30, lambda: f"{sizes}\n{worker.tail()}")
    letters = dead_letters_of(channel)
    errors = {(letter.failure.text if letter.failure else "").partition(":")[0] for letter in letters.all("celery")}
    assert "TypeError" in errors


def test_the_dead_letter_of_a_refused_message_tells_why(producer, celery_app, celery_worker, notes):
    app = celery_app()
    app.send_task("shop.of_tomorrow", serializer="json")
    app.send_task("c.note", ["good", "pickled"], serializer="pickle")
    send(producer, "celery", "celery", {}, {"hello": 1})
    app.send_task("c.note", ["good", "last"])
    worker = celery_worker(pool="solo", config={"accept_content": ["json"]})
    assert notes.wait_for("good", 1, 60, worker.tail) == {"last": 1}
    letters = dead_letters_of(producer.channel)
    wait_until(lambda: len(list(letters.all("celery"))) == 3, 30, worker.tail)
    errors = sorted(letter.failure.text for letter in letters.all("celery"))
    assert errors[0].startswith("ContentDisallowed: Refusing to deserialize")
    assert errors[1:] == ["InvalidTaskError: it names no task", "NotRegistered: 'shop.of_tomorrow'"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "prefork", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_a_worker_goes_on_when_results_could_not_be_stored(pool, celery_app, celery_worker, notes, redis_client):
    """In threads and greenlets such tasks stayed active, their messages unacked, and the worker without a place for others."""
    with new_server() as results:
        away = {"result_backend": results.url(0, "redis"), "task_acks_late": True, "worker_prefetch_multiplier": 1}
        config = {**away, "result_backend_transport_options": {"retry_policy": {"max_retries": 1, "timeout": 1}}}
        worker = celery_worker(pool=pool, concurrency=2, config=config)
        app = celery_app()
        for number in range(2):
            app.send_task("c.wait", ["away", str(number)])
        wait_until(lambda: len(notes.started("away")) == (1 if pool == "solo" else 2), 20, worker.tail)
        results.kill()
        notes.go("away")
        notes.wait_for("away", 2, 30, worker.tail)
        wait_until(lambda: not redis_client.exists("messages_index:{celery}", "queue:{celery}"), 30, worker.tail)
        results.start()
        for number in range(4):
            app.send_task("c.note", ["after", str(number)])
        assert notes.wait_for("after", 4, 30, worker.tail) == {str(number): 1 for number in range(4)}
    assert redis_client.zcard("dead:{celery}") == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "prefork", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_a_task_has_failed_whose_result_is_refused(pool, celery_app, celery_worker, notes, redis_client):
    """By a ValueError, as of MongoDB for a large document: the task has run, and its message is no dead letter."""
    backend = "tests.integration.celery.refusing_results:RefusingResults"
    config = {"result_backend": backend, "task_acks_late": True, "task_time_limit": 300, "worker_prefetch_multiplier": 1}
    worker, app = celery_worker(pool=pool, concurrency=2, config=config), celery_app()
    for number in range(4):
        app.send_task("c.note", ["refused", str(number)])
    assert notes.wait_for("refused", 4, 30, worker.tail) == {str(number): 1 for number in range(4)}
    wait_until(lambda: not redis_client.exists("messages_index:{celery}", "queue:{celery}"), 10, worker.tail)
    assert not redis_client.exists("dead:{celery}")
    assert "a document is too large" in worker.log()


@pytest.mark.sample(2)
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "prefork", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_a_message_is_settled_although_its_end_cannot_be_stored(pool, celery_app, celery_worker, notes, redis_client):
    """Celery stores the end of a task that rejects, and of one that has expired, before it settles their messages."""
    backend = "tests.integration.celery.refusing_results:RefusingResults"
    config = {"result_backend": backend, "task_acks_late": True, "worker_prefetch_multiplier": 1}
    worker, app = celery_worker(pool=pool, concurrency=2, config=config), celery_app()
    for number in range(4):
        app.send_task("c.never", ["rejects", str(number)])
        app.send_task("c.note", ["late", str(number)], expires=-1)
    wait_until(lambda: redis_client.zcard("dead:{celery}") == 4, 20, worker.tail)
    app.send_task("c.note", ["good", "last"])
    assert notes.wait_for("good", 1, 20, worker.tail) == {"last": 1}
    wait_until(lambda: not redis_client.exists("messages_index:{celery}", "queue:{celery}"), 10, worker.tail)
    assert (sorted(notes.started("rejects")), notes.started("late")) == (["0", "1", "2", "3"], [])
    assert redis_client.zcard("dead:{celery}") == 4
    assert "Connection to broker lost" not in worker.log()


@pytest.mark.sample(2)
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_a_worker_goes_on_when_a_task_raises_what_is_no_exception(pool, celery_app, celery_worker, notes, redis_client):
    """In prefork it is a lost worker. In threads and greenlets such tasks stayed active, and their worker without a place."""
    config = {"task_acks_late": True, "worker_prefetch_multiplier": 1}
    app = celery_app(**config)
    for number in range(2):
        app.send_task("c.leave", ["gone", str(number)])
    for number in range(2):
        app.send_task("c.note", ["after", str(number)])
    worker = celery_worker(pool=pool, concurrency=2, config=config)
    assert notes.wait_for("after", 2, 20, worker.tail) == {"0": 1, "1": 1}
    wait_until(lambda: sorted(notes.started("gone")) == ["0", "1"])
    wait_until(lambda: not redis_client.exists("messages_index:{celery}", "queue:{celery}", "dead:{celery}"), 10, worker.tail)


def test_a_worker_ends_where_nothing_can_be_handled(producer, celery_app, celery_worker, notes):
    """What is wrong is not the messages then, and they must not all become dead letters."""
    app = celery_app()
    for _ in range(MOST_IN_A_ROW + 5):
        send(producer, "celery", "celery", headers_of(), None)
    app.send_task("c.note", ["good", "last"])
    celery_worker().wait(60)
    assert dead_letters_of(producer.channel).count("celery") == MOST_IN_A_ROW
    worker = celery_worker()
    assert notes.wait_for("good", 1, 60, worker.tail) == {"last": 1}


def test_workers_that_listen_to_each_other_pass_over_odd_events(producer, celery_app, celery_worker, notes):
    app = celery_app()
    worker = celery_worker(quiet=False)
    app.send_task("c.note", ["good", "first"])
    notes.wait_for("good", 1, 30, worker.tail)
    for value in VALUES:
        for routing_key in ("worker.heartbeat", "worker.online", "x"):
            send(producer, "celeryev", routing_key, {"hostname": "other@h"}, value)
        for name in EVENT:
            send(producer, "celeryev", "worker.heartbeat", {"hostname": "other@h"}, {**EVENT, name: value})
        send(producer, "celeryev", "worker.heartbeat", {"hostname": value}, EVENT)
    wait_until(lambda: "an event of another worker cannot be handled" in worker.log(), 30, worker.tail)
    app.send_task("c.note", ["good", "last"])
    assert notes.wait_for("good", 2, 60, worker.tail) == {"first": 1, "last": 1}
    assert worker.running


def test_the_hard_time_limit_of_a_gevent_pool_ends_a_task_once(celery_app, celery_worker, notes, redis_client):
    """Its Timeout is no exception of the task: with late acks such a task ran again, as one whose worker was lost.

    Celery stores the end before it settles the message, which it does where that fails, too.
    """
    backend = "tests.integration.celery.refusing_results:RefusingResults"
    config = {"task_acks_late": True, "task_reject_on_worker_lost": True, "result_backend": backend}
    worker, app = celery_worker(pool="gevent", concurrency=2, config=config), celery_app(**config)
    app.send_task("c.wait", ["limited", "0"], time_limit=1)
    wait_until(lambda: "Hard time limit" in worker.log(), 20, worker.tail)
    app.send_task("c.note", ["after", "0"])
    notes.wait_for("after", 1, 10, worker.tail)
    wait_until(lambda: not redis_client.exists("messages_index:{celery}", "queue:{celery}", "dead:{celery}"), 10, worker.tail)
    assert notes.started("limited") == ["0"]
    assert "WorkerLostError" not in worker.log()
