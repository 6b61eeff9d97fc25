"""A worker whose connections are cut keeps what runs and gives back the rest, at once (issue A, Shows 6, 7 and 9)."""

import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import celery
import pytest
from kombu import Connection, Consumer, Queue

from celery_redis_plus.errors import ServerUnreachable
from tests.support.connection_kills import kill_connections
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

QUEUE = b"celery"
#: Between two heartbeats of a worker (`celery.worker.heartbeat.Heart`).
HEARTBEAT_S = 2
WITHOUT_HIREDIS = Path(__file__).parents[2] / "support" / "without_hiredis"


def left(client):
    return [(key, client.hkeys(key)) for key in client.keys("message:*")], client.zrange("messages_index:{celery}", 0, -1)


def claimed(client):
    return client.zcard(b"messages_index:{%s}" % QUEUE)


# How many run, and how many are at least claimed when the connections are cut.
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("setup", "pool", "running", "prefetched"),
    [
        ("configured", "prefork", 2, 20),
        ("configured", "threads", 2, 20),
        ("configured", "solo", 1, 1),
        ("alone", "prefork", 2, 20),
        ("alone", "gevent", 2, 3),
    ],
)
def test_running_tasks_run_once_and_prefetched_ones_at_once(  # noqa: PLR0917 - fixtures
    setup, pool, running, prefetched, celery_app, celery_worker, notes, redis_client
):
    config = {
        "task_acks_late": True,
        "worker_prefetch_multiplier": 10,
        "broker_transport_options": {"visibility_timeout": 300},
    }
    worker = celery_worker(setup, pool=pool, concurrency=2, config=config)
    app = celery_app(setup, **config)
    for number in range(20):
        app.send_task("c.wait", ["loss", str(number)])
    wait_until(lambda: len(notes.started("loss")) == running and claimed(redis_client) >= prefetched, 10, worker.tail)
    kill_connections(redis_client)
    if pool in {"prefork", "threads"}:
        # The others cannot notice before a task ends: gevent's consumer waits for a free slot in its pool.
        wait_until(lambda: "celery-redis-plus " in worker.log().partition("Connection to broker lost")[2], 10, worker.tail)
    notes.go("loss")

    ran = notes.wait_for("loss", 20, 10, worker.tail)
    assert dict(ran) == {str(number): 1 for number in range(20)}
    wait_until(lambda: not redis_client.keys(b"message:{%s}:*" % QUEUE), message=lambda: left(redis_client))


@pytest.mark.sample(2)
@pytest.mark.parametrize("pool", ["threads", "prefork", "gevent"])
def test_a_worker_claims_no_more_than_its_prefetch_after_lost_connections(pool, celery_app, celery_worker, notes, redis_client):
    """What its pool still has of the time before counts: else each loss lets it take as much again, beside idle workers."""
    config = {"task_acks_late": True, "worker_prefetch_multiplier": 1}
    worker = celery_worker(pool=pool, concurrency=2, config=config)
    app = celery_app(**config)
    for number in range(12):
        app.send_task("c.wait", ["hoard", str(number)])
    wait_until(lambda: len(notes.started("hoard")) == 2, 15, worker.tail)
    for losses in (1, 2, 3):
        # One that comes amid a reconnect may meet the maintenance alone.
        wait_until(
            lambda losses=losses: worker.log().count("] celery-redis-plus ") > losses or kill_connections(redis_client),
            15, worker.tail, interval_s=1,
        )  # fmt: skip
    heir = celery_worker(pool=pool, concurrency=2, config=config)
    wait_until(lambda: len(notes.started("hoard")) == 4, 15, heir.tail)
    assert claimed(redis_client) == 4
    notes.go("hoard")
    assert notes.wait_for("hoard", 12, 20, worker.tail) == {str(number): 1 for number in range(12)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_uses_its_free_places_while_a_task_goes_on_from_before_a_lost_connection(
    pool, celery_app, celery_worker, notes, redis_client
):
    """Celery 5.6 lowers the prefetch count after a lost connection, until new messages come."""
    if pool == "prefork" and celery.VERSION < (5, 7):
        pytest.skip("Celery 5.6 forgets with the connection which pool processes are busy, and hands one of them a new task")
    config = {"task_acks_late": True, "worker_prefetch_multiplier": 1}
    worker = celery_worker(pool=pool, concurrency=3, config=config)
    app = celery_app(**config)
    for name in ("long", "short", "short"):
        app.send_task("c.wait", [name, "task"])
    wait_until(lambda: len(notes.started("long") + notes.started("short")) == 3, 15, worker.tail)
    kill_connections(redis_client)
    wait_until(lambda: worker.log().count("] celery-redis-plus ") == 2, 15, worker.tail)
    notes.go("short")
    for number in range(6):
        app.send_task("c.note", ["new", str(number)])
    assert notes.wait_for("new", 6, 15, worker.tail) == {str(number): 1 for number in range(6)}
    assert notes.done("long") == []
    notes.go("long")


@pytest.mark.not_on("all", reason="a proxy leads to one server")
def test_a_busy_worker_ends_while_its_broker_is_silent(celery_app, celery_worker, notes, redis_client):
    """Celery's heartbeat, which it sends from the worker's loop, would connect again and again until the broker is back."""
    config = {
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        # Longer than between two heartbeats: the maintenance would tell the loop before.
        "broker_transport_options": {"socket_timeout": HEARTBEAT_S + 0.5, "socket_connect_timeout": 0.5},
    }
    with Proxy(lambda: redis_client.connection_pool.connection_kwargs["port"]) as proxy:
        worker = celery_worker(url=proxy.url(), pool="threads", concurrency=1, config=config)
        celery_app().send_task("c.wait", ["silence", "task"])
        wait_until(lambda: notes.started("silence"), 15, worker.tail)
        # By then the loop, with a full prefetch, asks the broker for nothing: the next heartbeat is the first to miss it.
        time.sleep(HEARTBEAT_S + 1)
        proxy.blackhole()
        time.sleep(2 * HEARTBEAT_S + 1)
        worker.ask_to_stop()
        notes.go("silence")
        assert worker.wait(30) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["solo", "gevent"])
@pytest.mark.not_on("all", reason="a proxy leads to one server")
def test_a_task_in_the_workers_own_timer_goes_back_though_garbage_keeps_its_request(
    pool, celery_app, celery_worker, notes, redis_client
):
    """In Celery 5.7 such a request and its timer's entry refer to each other (`Request._eta_timer_entry`)."""
    config = {"task_acks_late": True, "broker_transport_options": {"visibility_timeout": 300}}
    with Proxy(lambda: redis_client.connection_pool.connection_kwargs["port"]) as proxy:
        worker = celery_worker("configured", url=proxy.url(), pool=pool, config=config)
        app = celery_app("configured", **config)
        app.send_task("c.keep_garbage")
        app.send_task("c.note", ["timer", "first"])
        notes.wait_for("timer", 1, 20, worker.tail)
        due = time.time() + 1
        # Celery's first protocol has the eta in the body, where no broker looks.
        with app.producer_pool.acquire() as producer:
            message = app.amqp.as_task_v1("1", "c.note", ["timer", "later"], eta=datetime.fromtimestamp(due, UTC))
            producer.publish(message.body, routing_key="celery", serializer="json", **message.properties)
        wait_until(lambda: claimed(redis_client) == 1, message=worker.tail)
        proxy.refuse()
        # The worker connects again after the time at which its timer drops what was cancelled.
        time.sleep(max(0, due - time.time()) + 0.2)
        proxy.heal()
        assert notes.wait_for("timer", 2, 20, worker.tail) == {"first": 1, "later": 1}
        wait_until(lambda: not redis_client.keys(b"message:{%s}:*" % QUEUE), message=lambda: left(redis_client))
        # Not without the proxy, where some connections would stay open without an answer.
        assert worker.stop() == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["gevent", pytest.param("eventlet", marks=pytest.mark.weekly)])
@pytest.mark.parametrize("end", ["connection", "cold shutdown"])
def test_a_late_acked_task_whose_greenlet_is_killed_runs_again(end, pool, celery_app, celery_worker, notes, redis_client):
    """Celery's default from 6.0 on (`worker_cancel_long_running_tasks_on_connection_loss`)."""
    config = {
        "task_acks_late": True,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "broker_transport_options": {"visibility_timeout": 300},
    }
    worker = celery_worker("configured", pool=pool, concurrency=2, config=config)
    app = celery_app("configured", **config)
    for number in range(2):
        app.send_task("c.wait", ["kill", str(number)])
    wait_until(lambda: len(notes.started("kill")) == 2, 20, worker.tail)
    if end == "connection":
        kill_connections(redis_client)
    else:
        worker.signal(signal.SIGQUIT)
        worker.wait(60)
        worker = celery_worker("configured", pool=pool, concurrency=2, config=config)
    wait_until(lambda: len(notes.started("kill")) == 4, 20, worker.tail)
    notes.go("kill")

    assert dict(notes.wait_for("kill", 2, 20, worker.tail)) == {"0": 1, "1": 1}
    wait_until(lambda: not redis_client.keys(b"message:{%s}:*" % QUEUE), message=lambda: left(redis_client))


@pytest.mark.parametrize(
    ("pool", "parser"),
    [
        ("solo", "hiredis"),
        ("threads", "python"),
        pytest.param("solo", "python", marks=pytest.mark.weekly),
        pytest.param("threads", "hiredis", marks=pytest.mark.weekly),
    ],
)
@pytest.mark.not_on("all", reason="a proxy leads to one server")
def test_a_worker_whose_connections_are_reset_goes_on_whichever_parser_it_has(
    pool, parser, celery_app, celery_worker, notes, redis_client
):
    """A reset, unlike an end of file, makes the parser in Python close its connection before anybody reads from it."""
    with Proxy(lambda: redis_client.connection_pool.connection_kwargs["port"]) as proxy:
        env = {"PYTHONPATH": str(WITHOUT_HIREDIS)} if parser == "python" else {}
        worker = celery_worker(url=proxy.url(), pool=pool, env=env)
        app = celery_app()
        for number in range(5):
            proxy.reset()
            app.send_task("c.note", ["reset", str(number)])
            notes.wait_for("reset", number + 1, 10, worker.tail)
        assert worker.stop() == 0
    assert "please report it" not in worker.log()
    assert "Unrecoverable" not in worker.log()


def test_consumer_is_told_when_another_thread_has_met_the_broken_connection(broker_url, redis_client):
    with Connection(broker_url) as connection:
        queue = Queue("told")
        consumer = Consumer(connection, [queue], callbacks=[lambda _, message: message.ack()])
        consumer.consume()
        kill_connections(redis_client)
        with pytest.raises(connection.connection_errors):
            connection.default_channel.queue_purge("told")

        with pytest.raises(ServerUnreachable):
            connection.drain_events(timeout=2)
        consumer.cancel()
        # Nobody consumes any more: kombu may replace the connection without a word.
        assert connection.default_channel.queue_declare("told", passive=True).queue == "told"


def test_consumer_ends_with_a_connection_that_breaks_as_it_is_cancelled(broker_url, redis_client):
    queue = Queue("ends")
    with Connection(broker_url) as other, Connection(broker_url) as connection:
        consumer = Consumer(connection, [queue], callbacks=[lambda *_: None])
        consumer.consume()
        kill_connections(redis_client)
        consumer.cancel()
        connection.close()
        wait_until(lambda: queue(other.default_channel).queue_declare(passive=True).consumer_count == 0)
