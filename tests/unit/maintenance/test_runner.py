"""What is due runs in turn; heartbeats come first, and one refused task does not keep the others from theirs."""

from __future__ import annotations

import logging

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from celery_redis_plus.maintenance.runner import REFUSED_RETRY_S, TaskRunner

NEVER = float("inf")


class Task:
    """Notes its runs in `ran`; a run takes `takes_s`, and comes again after `every_s`."""

    def __init__(self, name, clock, ran, *, due_at=0.0, every_s=NEVER, takes_s=0.0):
        self.next_run_at = due_at
        self.error = None
        self._name, self._clock, self._ran = name, clock, ran
        self._every_s, self._takes_s = every_s, takes_s

    def run(self):
        self._ran.append(self._name)
        self._clock.advance(self._takes_s)
        if self.error is not None:
            raise self.error
        self.next_run_at = self._clock() + self._every_s


class Slow(Task):
    pass


@pytest.fixture
def ran():
    return []


@pytest.fixture
def task(clock, ran):
    """Make a task: `task("a", due_at=…)`."""
    return lambda name, **options: Task(name, clock, ran, **options)


def test_the_next_run_is_that_of_the_earliest_task(task):
    runner = TaskRunner([task("a", due_at=1030.0), task("b", due_at=1020.0)], first=[task("heartbeat", due_at=1025.0)])
    assert runner.next_run_at == 1020.0


def test_a_heartbeat_may_be_the_next_run(task):
    runner = TaskRunner([task("a", due_at=1030.0)], first=[task("heartbeat", due_at=1025.0)])
    assert runner.next_run_at == 1025.0


def test_only_what_is_due_runs(task, clock, ran):
    runner = TaskRunner([task("late", due_at=1010.0), task("due"), task("now", due_at=clock())])
    runner.run()
    assert ran == ["due", "now"]
    clock.advance(10)
    runner.run()
    assert ran == ["due", "now", "late"]


def test_a_heartbeat_that_becomes_due_meanwhile_comes_before_the_next_task(task, ran):
    tasks = [task("a", takes_s=2.0), task("b", takes_s=0.5), task("c")]
    runner = TaskRunner(tasks, first=[task("heartbeat", every_s=1.0)])
    runner.run()
    assert ran == ["heartbeat", "a", "heartbeat", "b", "c"]


def test_what_becomes_due_during_a_run_waits_for_the_next(task, ran):
    runner = TaskRunner([task("a", takes_s=2.0), task("b", due_at=1001.0)])
    runner.run()
    assert ran == ["a"]
    runner.run()
    assert ran == ["a", "b"]


def test_a_refused_task_does_not_keep_the_others_from_running(task, ran):
    refused, other = task("refused"), task("other")
    refused.error = ResponseError("NOPERM")
    TaskRunner([refused, other]).run()
    assert ran == ["refused", "other"]


def test_a_refused_task_runs_again_after_a_rest(task, clock, ran):
    refused = task("refused")
    refused.error = ResponseError("NOPERM")
    runner = TaskRunner([refused])
    runner.run()
    assert runner.next_run_at == clock() + REFUSED_RETRY_S
    clock.advance(REFUSED_RETRY_S * 0.9)
    runner.run()
    assert ran == ["refused"]
    clock.advance(REFUSED_RETRY_S * 0.1)
    runner.run()
    assert ran == ["refused", "refused"]


def test_a_refusal_is_logged_when_it_begins_changes_and_ends(task, clock, caplog):
    refused = task("refused")
    runner = TaskRunner([refused])
    with caplog.at_level(logging.INFO, "celery_redis_plus.maintenance"):
        for error in (ResponseError("NOPERM"), ResponseError("NOPERM"), ResponseError("OOM"), None):
            refused.error = error
            runner.run()
            clock.advance(REFUSED_RETRY_S)
    assert [record.getMessage() for record in caplog.records] == [
        "task: the broker refuses it (NOPERM); trying again",
        "task: the broker refuses it (OOM); trying again",
        "task: the broker takes it again",
    ]


def test_a_lost_connection_ends_the_run(task, ran):
    lost, other = task("lost"), task("other")
    lost.error = RedisConnectionError("gone")
    runner = TaskRunner([lost, other])
    with pytest.raises(RedisConnectionError):
        runner.run()
    assert ran == ["lost"]
    assert runner.next_run_at == 0.0, "it is as due as before"


def test_the_longest_task_is_told_once(task, clock, ran):
    runner = TaskRunner([task("a", takes_s=1.0), Slow("b", clock, ran, takes_s=3.0), task("c", takes_s=2.0)])
    runner.run()
    assert runner.take_longest() == ("slow", 3.0)
    assert runner.take_longest() == ("", 0.0)


def test_a_task_that_fails_may_be_the_longest(task, clock, ran):
    slow = Slow("a", clock, ran, takes_s=3.0)
    slow.error = RedisConnectionError("no answer in time")
    runner = TaskRunner([slow])
    with pytest.raises(RedisConnectionError):
        runner.run()
    assert runner.take_longest() == ("slow", 3.0)
