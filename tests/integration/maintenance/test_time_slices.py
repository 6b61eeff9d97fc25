"""No maintenance task keeps the thread from heartbeats; a thread that is late or dead is noticed."""

from __future__ import annotations

import itertools
import json
import logging
import time

import kombu
import pytest

from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

VISIBILITY_TIMEOUT_S = 3
#: A heartbeat every 0.5 s.
INTERVAL_S = VISIBILITY_TIMEOUT_S / 6
FLOOD = 5000


@pytest.fixture
def held(connect):
    """A channel whose process holds a message of `work`."""
    channel = connect(visibility_timeout=VISIBILITY_TIMEOUT_S).channel()
    inbox = Inbox(channel, "work", ack=False)
    publish(channel, "work", "m")
    inbox.drain(1)
    return channel, inbox


def heartbeats(service, monkeypatch):
    times = []
    run = service.tasks.lease_heartbeats.run

    def note():
        times.append(time.monotonic())
        run()

    monkeypatch.setattr(service.tasks.lease_heartbeats, "run", note)
    return times


def test_a_flood_of_dead_letters_delays_neither_heartbeats_nor_timers(held, connect, redis_client, monkeypatch):
    channel, _ = held
    declare(channel, "graves")
    poison = kombu.Queue(
        "poison", queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    )  # fmt: skip
    poison(channel).declare()
    envelope = json.dumps({"headers": {}, "properties": {"delivery_info": {"exchange": "", "routing_key": "poison"}}})
    pipe = redis_client.pipeline(transaction=False)
    tags = [f"{number:019d}.x" for number in range(FLOOD)]
    for tag in tags:
        pipe.hset(f"message:{{poison}}:{tag}", mapping={"payload": envelope + "\nx", "score": 1, "reason": "rejected", "died": 1})
    pipe.zadd("dlx_outbox:{poison}", dict.fromkeys(tags, 1))
    pipe.execute()
    times = heartbeats(channel.session.service, monkeypatch)
    inbox = Inbox(connect(visibility_timeout=VISIBILITY_TIMEOUT_S).channel(), poison)
    wait_until(lambda: redis_client.zcard("dlx_outbox:{poison}") < FLOOD)
    began = time.time()
    publish(channel, "poison", "delayed", headers={"x-delay": 200})
    assert inbox.drain(1) == ["delayed"]
    assert inbox.times[0] - began < 1.5
    wait_until(lambda: not redis_client.zcard("dlx_outbox:{poison}"), 30)
    wait_until(lambda: len(times) > 2)
    assert channel.queue_sizes("graves").ready == FLOOD
    assert max(after - before for before, after in itertools.pairwise(times)) < 3 * INTERVAL_S


def test_a_vanished_queue_with_many_messages_is_cleared_in_slices(held, redis_client, monkeypatch):
    # However fast the machine is.
    monkeypatch.setattr("celery_redis_plus.maintenance.maintenance_task.SLICE_S", 0.01)
    channel, _ = held
    service = channel.session.service
    service.tasks.janitor._clear_at = float("inf")  # noqa: SLF001 - not before the queue is full
    kombu.Queue("gone", expires=0.3)(channel).declare()
    wait_until(lambda: not redis_client.exists("meta:{gone}"))
    pipe = redis_client.pipeline(transaction=False)
    tags = [f"{number:019d}.x" for number in range(6 * FLOOD)]
    for tag in tags:
        pipe.hset(f"message:{{gone}}:{tag}", "payload", "{}")
    pipe.zadd("queue:{gone}", dict.fromkeys(tags, 1))
    pipe.execute()
    longest = []
    run = service.tasks.janitor.run

    def timed():
        began = time.monotonic()
        run()
        longest.append(time.monotonic() - began)

    monkeypatch.setattr(service.tasks.janitor, "run", timed)
    wait_until(lambda: service.tasks.janitor._queues.registry.overdue() == ["gone"])  # noqa: SLF001
    service.tasks.janitor._clear_at = 0.0  # noqa: SLF001
    redis_client.config_set("slowlog-log-slower-than", 50_000)
    redis_client.config_set("slowlog-max-len", 1000)
    redis_client.slowlog_reset()
    service.wake()
    wait_until(lambda: redis_client.exists("trash:{gone}"))
    # Until the messages are freed the list has the queue, for the next process.
    assert redis_client.zscore("queues", "gone") > 0
    wait_until(lambda: redis_client.zscore("queues", "gone") < 0, 30)
    assert left_of(redis_client, "gone") == []
    assert len([took for took in longest if took > 0.005]) >= 2
    assert max(longest) < 3 * INTERVAL_S
    slow = [entry["command"] for entry in redis_client.slowlog_get() if b"EVALSHA" in entry["command"]]
    # Of 60 calls: a busy machine stops the server now and then.
    assert len(slow) < 6


def left_of(client, queue):
    return client.keys(f"*{{{queue}}}*")


def test_late_heartbeats_are_counted_and_logged_with_what_took_the_time(held, monkeypatch, caplog):
    service = held[0].session.service
    monkeypatch.setattr(service.tasks.janitor, "_clear", lambda: time.sleep(3 * INTERVAL_S))
    service.tasks.janitor._clear_at = 0.0  # noqa: SLF001
    with caplog.at_level(logging.WARNING, "celery_redis_plus.maintenance"):
        service.wake()
        wait_until(lambda: service.tasks.lease_heartbeats.late == 1)
    wait_until(lambda: "The longest task since the last one: janitor, 1.5 s" in caplog.text)


def test_a_thread_that_stands_still_is_noticed_by_the_consumer(held, monkeypatch, caplog):
    channel, inbox = held
    service = channel.session.service
    monkeypatch.setattr(service.tasks.janitor, "_clear", lambda: time.sleep(5 * INTERVAL_S))
    service.tasks.janitor._clear_at = 0.0  # noqa: SLF001
    service.wake()
    with caplog.at_level(logging.WARNING, "celery_redis_plus.maintenance"):
        wait_until(lambda: not inbox.pump(0.1) and "the thread for heartbeats gets no time" in caplog.text)
    wait_until(lambda: service.tasks.lease_heartbeats.late)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_started_again_by_the_consumer(held, monkeypatch, caplog):
    channel, inbox = held
    service = channel.session.service
    thread = service._thread  # noqa: SLF001

    def die():
        monkeypatch.undo()
        raise SystemExit

    monkeypatch.setattr(service.tasks.janitor, "_clear", die)
    service.tasks.janitor._clear_at = 0.0  # noqa: SLF001
    service.wake()
    wait_until(lambda: not thread.is_alive())
    wait_until(lambda: not inbox.pump(0.1) and service.thread_restarts == 1)
    wait_until(lambda: service.running)
    assert "has died; it is started again" in caplog.text
    times = heartbeats(service, monkeypatch)
    wait_until(lambda: len(times) > 1)
    assert not service.unacked_messages.find(inbox.messages[0].delivery_tag).lease_lost
