"""The lists of expired tasks and of transient queues follow the server's clock, wherever it steps."""

from __future__ import annotations

from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.queues.expired_tasks import RETRY_MS, ExpiredTasks
from celery_redis_plus.integration.expired import OFFERED_MS
from celery_redis_plus.stored_message import Outgoing
from tests.integration.clock.conftest import sweeper_of

HOUR_S = 3600


def expired_task(broker, clock):
    """Have a task expire in the queue `q`, as its sweep finds it."""
    broker.declare("q")
    envelope = b'{"headers": {"task": "t", "expires": "2000-01-01T00:00:00+00:00"}}'
    broker.publisher.to_queue("q", Outgoing(envelope, b"x", 255, 0, life=str(clock.now_ms - 1)), PublishAttempt())
    sweeper_of(broker, "s").run()
    return ExpiredTasks(broker.commands, broker.keys)


def test_an_expired_task_is_taken_at_once_after_a_step_back(clock, broker):
    tasks = expired_task(broker, clock)
    clock.step(-HOUR_S)
    (task,) = tasks.take(["t"])
    assert tasks.take(["t"]) == [], "another worker takes what is being revoked"
    tasks.done([task])
    assert not tasks.waiting()


def test_an_expired_task_whose_worker_died_comes_again_in_time_after_a_step_back(clock, broker):
    tasks = expired_task(broker, clock)
    assert tasks.take(["t"])
    clock.step(-HOUR_S)
    assert tasks.take(["t"])
    clock.step(RETRY_MS / 1000 + 1)
    assert tasks.take(["t"])


def test_other_workers_are_woken_for_an_expired_task_for_no_longer_after_a_step_back(clock, broker):
    tasks = expired_task(broker, clock)
    clock.step(-HOUR_S)
    assert 0 <= tasks.names()["t"] < OFFERED_MS
    clock.step(OFFERED_MS / 1000)
    assert tasks.names()["t"] >= OFFERED_MS


def test_a_vanished_transient_queue_is_overdue_on_the_servers_clock(clock, broker):
    broker.queues.enlist("gone", 60_000)
    assert broker.queues.overdue() == []
    clock.step(61)
    assert broker.queues.overdue() == ["gone"]
