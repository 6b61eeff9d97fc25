"""`limit` inside a task: it waits for a limiter, raises behind its timeout, and holds one that a service has refused."""

from __future__ import annotations

import pickle
import time

import pytest

import celery_redis_plus as crp
from celery_redis_plus.errors import InvalidArgument, LimitReached
from celery_redis_plus.testing import running_worker
from tests.support.waiting import wait_until


def test_a_rate_lets_through_what_it_has_and_says_when_there_is_more(app):
    with crp.limit("a:1/m burst=10", cost=7, app=app):
        pass
    with pytest.raises(LimitReached, match=r"limiter 'a' \(1/m burst=10\) has no room within 0.1 s") as raised:
        crp.limit("a:1/m burst=10", cost=7, timeout=0.1, app=app).__enter__()
    assert 200 < raised.value.retry_after <= 240
    assert pickle.loads(pickle.dumps(raised.value)).retry_after == raised.value.retry_after
    with crp.limit("a:1/m burst=10", cost=7, key="other", timeout=0, app=app):
        pass


def test_it_waits_until_there_is_room(app):
    began = time.monotonic()
    for _ in range(3):
        with crp.limit("a:20/s burst=1", app=app):
            pass
    assert time.monotonic() - began > 0.09


def test_a_hold_stands_for_all_keys_and_ends_early(app):
    crp.limit.hold("a", 60, app=app)
    with pytest.raises(LimitReached):
        crp.limit("a:1/s", key="c7", timeout=0, app=app).__enter__()
    crp.limit.hold("a", 0, app=app)
    with crp.limit("a:1/s", key="c7", timeout=0, app=app):
        pass
    for text, seconds in (("a b", 1), ("a", -1), ("a", True), ("a", 31 * 86_400)):
        with pytest.raises(InvalidArgument, match="allowed"):
            crp.limit.hold(text, seconds, app=app)


def test_a_concurrency_holds_while_the_block_runs(app):
    app.conf.task_acks_late = True
    seen, go_on = [], []

    @app.task(name="places", shared=False)
    def task(number):
        with crp.limit("gpu:concurrency=1", timeout=10):
            seen.append(number)
            wait_until(lambda: go_on)
            go_on.pop()

    with running_worker(app, concurrency=2):
        task.delay(1)
        wait_until(lambda: seen)
        task.delay(2)
        time.sleep(0.2)
        assert seen == [1]
        go_on.append(1)
        wait_until(lambda: len(seen) == 2)
        go_on.append(1)
        wait_until(lambda: not go_on)


def test_a_concurrency_needs_a_message_that_is_acked_late(app):
    with pytest.raises(InvalidArgument, match=r"limit of 'gpu'.*acked late; allowed in a task of a worker with acks_late=True"):
        crp.limit("gpu:concurrency=1", app=app).__enter__()
    with pytest.raises(InvalidArgument, match="limiter 'gpu' has no rule; allowed is one with it"):
        crp.limit("gpu", app=app)


def test_an_eager_task_is_not_limited(app):
    @app.task(name="eager", shared=False)
    def task():
        with crp.limit("a:1/h", timeout=0, app=app):
            return True

    assert [task.apply().get() for _ in range(3)] == [True] * 3
