"""kill -9 of the only worker of a queue; long after it is lost, a new one is served at once (issue 15, Show 3)."""

from __future__ import annotations

import time

import pytest
from kombu import Queue

from tests.support.waiting import wait_until
from tests.support.workers import Worker

SINGLE = {"x-single-active-consumer": True}


@pytest.fixture(params=["scaled", pytest.param("default", marks=pytest.mark.full_only)])
def times(request):
    """Give transport options and seconds to wait for: with all defaults, a process without a connection is lost after 5 s."""
    return ({"connection_lost_grace": 1}, 4) if request.param == "scaled" else ({}, 10)


@pytest.mark.parametrize("kind", ["single active", "exclusive", "priority 10"])
def test_a_new_worker_is_served_within_two_seconds_of_its_start(kind, times, own_server, tmp_path, figures):
    options, gap_s = times
    arguments = {"single active": {"queue_arguments": SINGLE}, "exclusive": {}, "priority 10": {}}[kind]
    app_file = tmp_path / "only_app.py"
    app_file.write_text(
        APP.format(url=own_server.url(), journal=own_server.url(1, "redis"), options=options, arguments=arguments)
    )
    first_options = ("--consumer-priority", "10") if kind == "priority 10" else ()
    exclusive = {"ONLY_EXCLUSIVE": "1"} if kind == "exclusive" else {}
    path = {"PYTHONPATH": str(tmp_path), **exclusive}

    def worker(name, more=()):
        return Worker("only_app", tmp_path, pool="solo", name=name, env=path, options=more)

    from kombu import Connection

    with Connection(own_server.url()) as connection, own_server.client(1) as journal:
        channel = connection.channel()
        Queue("celery", durable=True, **arguments)(channel).declare()
        from celery import Celery

        app = Celery("only", broker=own_server.url())
        app.conf.task_create_missing_queues = True

        def send():
            with app.connection_for_write() as out:
                app.send_task("only.note", connection=out, queue=Queue("celery", durable=True, **arguments))

        killed = worker("killed", first_options).start()
        send()
        wait_until(lambda: journal.llen("done") == 1)
        killed.kill()
        end = time.monotonic() + gap_s
        wait_until(lambda: time.monotonic() > end, gap_s + 5, interval_s=0.1)
        send()
        with worker("new") as new:
            start = time.monotonic()
            wait_until(lambda: journal.llen("done") == 2, 30, new.tail)
            took = time.monotonic() - start
            for number in range(3):
                sent = time.monotonic()
                send()
                wait_until(lambda number=number: journal.llen("done") == 3 + number, 30, new.tail)
                took = max(took, time.monotonic() - sent)
        app.close()
    figures(f"{kind}, {gap_s} s after the kill of the only worker: the new one had each message within {took:.2f} s")
    assert took < 2


APP = """
import os
import celery_redis_plus, redis
from celery import Celery
from kombu import Queue

app = Celery("only", broker="{url}")
celery_redis_plus.configure_app(app)
queue = Queue("celery", durable=True, **{arguments})
app.conf.update(
    task_ignore_result=True, task_queues=[queue], task_default_queue="celery", broker_transport_options={options},
    broker_connection_retry_on_startup=True,
)

if os.environ.get("ONLY_EXCLUSIVE"):
    from celery_redis_plus.transport.channel import Channel
    plain = Channel.basic_consume

    def basic_consume(self, queue, *arguments, **options):
        return plain(self, queue, *arguments, **{{**options, "exclusive": queue == "celery"}})

    Channel.basic_consume = basic_consume


@app.task(name="only.note")
def note():
    redis.Redis.from_url("{journal}").rpush("done", "x")
"""
