"""What is due runs in turn; heartbeats come first, and a task that fails does not keep the others from theirs."""

from __future__ import annotations

import logging

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from celery_redis_plus.maintenance.runner import FIRST_REST_S, LONGEST_REST_S, TIMETABLE_S, TaskRunner

NEVER = float("inf")
REPORT_IT = "This is a defect of celery-redis-plus, please report it"


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


class UnspeakableError(Exception):
    def __str__(self):
        raise ZeroDivisionError


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


FAILURES = [
    pytest.param(ResponseError("NOPERM"), id="refused"),
    pytest.param(RuntimeError("a defect"), id="defect"),
    pytest.param(UnspeakableError(), id="without-a-text"),
    pytest.param(OSError("no space"), id="system"),
]


@pytest.mark.parametrize("error", FAILURES)
def test_a_task_that_fails_does_not_keep_the_others_from_running(error, task, ran):
    failing, other = task("failing"), task("other")
    failing.error = error
    runner = TaskRunner([failing, other], first=[task("heartbeat")])
    runner.run()
    assert ran == ["heartbeat", "failing", "other"]
    assert (runner.failed, list(runner.failing)) == (1, ["task"])


def test_a_failed_task_rests_for_longer_each_time_up_to_a_limit(task, clock):
    failing = task("failing")
    failing.error = RuntimeError("a defect")
    runner = TaskRunner([failing])
    rests = []
    for _ in range(7):
        runner.run()
        rests.append(runner.next_run_at - clock())
        clock.advance(rests[-1])
    assert rests[:3] == [FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S]
    assert rests[-1] == LONGEST_REST_S


def test_a_failed_task_does_not_run_before_its_rest_is_over(task, clock, ran):
    failing = task("failing")
    failing.error = RuntimeError("a defect")
    runner = TaskRunner([failing])
    runner.run()
    clock.advance(FIRST_REST_S * 0.9)
    runner.run()
    assert ran == ["failing"]
    clock.advance(FIRST_REST_S * 0.1)
    runner.run()
    assert ran == ["failing", "failing"]


def test_a_heartbeat_that_fails_rests_briefly(task, clock):
    heartbeat = task("heartbeat")
    heartbeat.error = RuntimeError("a defect")
    runner = TaskRunner([task("a")], first=[heartbeat])
    for _ in range(5):
        runner.run()
        assert runner.next_run_at == clock() + FIRST_REST_S
        clock.advance(FIRST_REST_S)


def test_a_task_that_runs_again_begins_with_a_short_rest(task, clock):
    failing = task("failing", every_s=0.0)
    runner = TaskRunner([failing])
    for error in (RuntimeError("a"), RuntimeError("a"), None, RuntimeError("a")):
        failing.error = error
        runner.run()
        clock.advance(0 if error is None else runner.next_run_at - clock())
    assert runner.failed == 3
    failing.error = None
    runner.run()
    assert not runner.failing


def test_a_task_whose_time_cannot_be_told_fails_alone(clock, ran, task):
    class Timeless:
        @property
        def next_run_at(self):
            raise KeyError("a queue")

        def run(self):
            raise AssertionError("it is not due")

    runner = TaskRunner([Timeless(), task("other")])
    runner.run()
    assert ran == ["other"]
    assert runner.failing == {"timeless": "KeyError: 'a queue'"}
    assert runner.next_run_at == clock() + FIRST_REST_S


def test_a_failure_is_logged_when_it_begins_changes_and_ends(task, clock, caplog):
    failing = task("failing")
    runner = TaskRunner([failing])
    with caplog.at_level(logging.INFO, "celery_redis_plus.maintenance"):
        for error in (ResponseError("NOPERM"), ResponseError("NOPERM"), ResponseError("OOM"), RuntimeError("a defect"), None):
            failing.error = error
            runner.run()
            clock.advance(LONGEST_REST_S)
    assert [record.getMessage() for record in caplog.records] == [
        "task (maintenance): the broker refuses it (NOPERM); trying again",
        "task (maintenance): the broker refuses it (OOM); trying again",
        f"task (maintenance) failed and is tried again; the others run. {REPORT_IT}",
        "task (maintenance) runs again",
    ]
    assert "RuntimeError: a defect" in caplog.text


def test_a_lost_connection_ends_the_run(task, ran):
    lost, other = task("lost"), task("other")
    lost.error = RedisConnectionError("gone")
    runner = TaskRunner([lost, other])
    with pytest.raises(RedisConnectionError):
        runner.run()
    assert ran == ["lost"]
    assert runner.next_run_at == 0.0, "it is as due as before"


def test_a_task_that_loses_the_connection_each_time_comes_last(task, ran):
    lost, other = task("lost"), task("other")
    lost.error = RedisConnectionError("the reply is too long")
    runner = TaskRunner([lost, other])
    for _ in range(2):
        with pytest.raises(RedisConnectionError):
            runner.run()
    assert ran == ["lost", "other", "lost"]


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


def test_a_run_in_which_nothing_is_due_asks_each_task_once(clock, ran):
    asked = []

    class Asked:
        def __init__(self, name):
            self.name = name

        @property
        def next_run_at(self):
            asked.append(self.name)
            return NEVER

        def run(self):
            ran.append(self.name)

    TaskRunner([Asked("a"), Asked("b")], first=[Asked("heartbeat")]).run()
    assert sorted(asked) == ["a", "b", "heartbeat"]
    assert ran == []


def test_without_news_what_is_not_due_by_the_timetable_is_not_asked(task, clock, ran):
    acks, other = task("acks", due_at=1000.0, every_s=0.01), task("other", due_at=1020.0)
    runner = TaskRunner([other], first=[acks])
    assert runner.run() == pytest.approx(1000.01)
    other.next_run_at = 0.0
    clock.advance(0.02)
    assert runner.run(news=False) == pytest.approx(1000.03)
    assert ran == ["acks", "acks"]
    clock.advance(0.02)
    runner.run()
    assert ran == ["acks", "acks", "acks", "other"]


def test_the_timetable_is_asked_anew_after_a_while(task, clock, ran):
    other = task("other", due_at=1020.0)
    runner = TaskRunner([other], first=[task("acks", due_at=1000.0, every_s=0.01)])
    runner.run()
    other.next_run_at = 0.0
    clock.advance(TIMETABLE_S)
    runner.run(news=False)
    assert ran == ["acks", "acks", "other"]


def test_without_news_what_is_due_runs(task, clock, ran):
    runner = TaskRunner([task("other", due_at=1000.05)], first=[task("acks", due_at=1000.0)])
    runner.run()
    clock.advance(0.06)
    runner.run(news=False)
    assert ran == ["acks", "other"]


def test_tasks_of_the_leader_are_due_in_the_leader_only(task, clock, ran):
    leads = [False]
    runner = TaskRunner([task("own", every_s=10)], of_leader=[task("shared")], leads=lambda: leads[0])
    assert runner.run() == 1010.0
    leads[0] = True
    assert runner.next_run_at == 0.0
    runner.run()
    assert ran == ["own", "shared"]


def test_a_step_that_fails_within_the_run_of_another_task_fails_alone(task):
    failing, other = task("failing"), task("other")
    runner = TaskRunner([failing, other])

    def step():
        raise RuntimeError("a defect")

    runner.alone(failing, step)
    assert dict(runner.failing) == {"task": "RuntimeError: a defect"}
    runner.alone(failing, lambda: pytest.fail("it rests"))
    failing.error = RedisConnectionError("gone")
    with pytest.raises(RedisConnectionError):
        runner.alone(other, failing.run)


def test_tasks_that_look_again_and_again_run_together(task, clock, ran):
    looks = [task("a", due_at=1000.0, every_s=1.0), task("b", due_at=1000.2, every_s=1.0)]
    exact = task("exact", due_at=1000.1)
    runner = TaskRunner([*looks, exact], together=lambda: looks)
    runner.run()
    assert ran == ["a", "b"]
    assert runner.next_run_at == 1000.1
    clock.advance(0.1)
    runner.run()
    # What is due exactly then makes nothing else due: a busy process would look more often.
    assert ran == ["a", "b", "exact"]
    assert runner.next_run_at == 1001.0


def test_a_heartbeat_comes_early_with_what_looks_at_about_its_time(task, ran):
    heartbeat, look = task("heartbeat", due_at=1000.2), task("look", due_at=1000.0)
    TaskRunner([look], first=[heartbeat], together=lambda: [look, heartbeat]).run()
    assert ran == ["heartbeat", "look"]
