"""The consistency check beside a live worker and publishers under load: what is on its way is no violation."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from tests.support.waiting import wait_until

#: Checks beside the load, seconds that they take, and messages that they look at, at least.
CHECKS, SECONDS, LOOKED_AT = 3, 2.0, 100


def traffic(url: str, stop: threading.Event) -> None:
    """Publish and consume on queues of every kind, with every way to settle, until it stops."""
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        exchange = kombu.Exchange("e", "topic", durable=True)
        work = kombu.Queue("work", exchange, routing_key="#", durable=True, queue_arguments={"x-dead-letter-exchange": "e2"})
        grave = kombu.Queue("grave", kombu.Exchange("e2", "topic", durable=True), routing_key="#", durable=True)
        seen = []

        def settle(message):
            seen.append(message)
            (message.ack, message.requeue, message.reject)[len(seen) % 3]()

        consumer = kombu.Consumer(channel, [work, grave], on_message=settle, accept=None)
        consumer.qos(prefetch_count=10)
        consumer.consume()
        producer = kombu.Producer(channel, exchange)
        while not stop.is_set():
            for priority in (0, 5):
                producer.publish("x", routing_key="k", priority=priority, headers={"x-delay": 20 * priority})
            producer.publish("y", routing_key="k", expiration=0.05)
            if len(seen) % 100 == 0:
                producer.publish("z" * 1_100_000, routing_key="k")
            reply = kombu.Queue(f"reply{len(seen)}", auto_delete=True, expires=1)(channel)
            reply.declare()
            kombu.Producer(channel).publish("r", routing_key=reply.name)
            for _ in range(5):
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.01)
            reply.delete()


@pytest.mark.slow
def test_a_check_beside_a_worker_under_load_finds_nothing(celery_app, celery_worker, notes, broker_url):
    worker = celery_worker(pool="threads", concurrency=4, config={"task_acks_late": True})
    app = celery_app()
    stop = threading.Event()
    threads = [threading.Thread(target=traffic, args=(broker_url, stop)) for _ in range(2)]
    sent = 0

    def tasks():
        nonlocal sent
        while not stop.is_set():
            app.send_task("c.note", ("load", str(sent)), priority=sent % 10, countdown=sent % 3 / 10)
            sent += 1

    threads.append(threading.Thread(target=tasks))
    for thread in threads:
        thread.start()

    @contextmanager
    def stopping():
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    with BrokerAdmin(broker_url) as admin, stopping():
        wait_until(lambda: {"work", "grave"} <= {*admin.queues()} and sent)
        began = time.monotonic()
        found, checks, looked_at = [], 0, 0
        while checks < CHECKS or looked_at < LOOKED_AT or time.monotonic() - began < SECONDS:
            checker = admin.checker(repair=True)
            found += checker.run()
            checks += 1
            looked_at += checker.account.messages
    assert [violation.line() for violation in found] == []
    done = wait_until(lambda: len(set(notes.done("load"))) == sent and notes.done("load"), 30, worker.tail)
    assert len(done) == sent
