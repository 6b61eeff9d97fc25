"""Runs the maintenance tasks that are due; one that fails rests, and does not keep the others from theirs.

Heartbeats come before each of the others, which give the thread back after a slice (`maintenance_task.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.last_error import text_of
from celery_redis_plus.errors import InvalidAddress, ServerTooOld

if TYPE_CHECKING:
    from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

logger = logging.getLogger(__name__)

#: Seconds for which a task rests that has failed: first, and at most. Each failure after another one doubles the rest.
FIRST_REST_S, LONGEST_REST_S = 1.0, 16.0
#: Seconds for which a task is not asked again when it is due, unless something happens.
TIMETABLE_S = 0.1
#: Seconds by which a task that looks once a second comes earlier where another such one is due: they wake the thread once.
TOGETHER_S = 0.5
#: What concerns all tasks alike: the connection is lost, or the server does not let us in.
UNREACHABLE = (RedisConnectionError, RedisTimeoutError, ServerTooOld, InvalidAddress)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a task raised last, and until when it rests, on `clock`, in seconds."""

    text: str
    rest_s: float
    rests_until: float


class TaskRunner:
    """Runs all maintenance tasks in turn."""

    def __init__(
        self,
        tasks: Sequence[MaintenanceTask],
        *,
        first: Sequence[MaintenanceTask] = (),
        of_leader: Sequence[MaintenanceTask] = (),
        leads: Callable[[], bool] = lambda: True,
        together: Callable[[], Collection[MaintenanceTask]] = tuple,
    ) -> None:
        """Take `tasks` in this order, and those of `first` that are due before each of them.

        Behind `tasks` come those `of_leader`, which are due only where `leads` says that this process leads. Those that
        `together` returns may come sooner than they are due.
        """
        self._of_leader = frozenset(of_leader)
        self._together = together
        self._leads = leads
        self._tasks = (*tasks, *of_leader)
        self._first = first
        #: When each task is due, as it said when all were asked last, and when that was; on `clock`, in seconds.
        self._timetable: dict[MaintenanceTask, float] = {}
        self._asked_at = 0.0
        #: What took longest since `take_longest` was called: name and seconds.
        self._longest = ("", 0.0)
        self._failures: dict[MaintenanceTask, _Failure] = {}
        #: The task that lost the connection in the last run: it comes last in the next one, should it do so again.
        self._lost: MaintenanceTask | None = None
        #: How often a task has failed.
        self.failed = 0

    @property
    def tasks(self) -> Sequence[MaintenanceTask]:
        """All tasks: those of `first`, then the others."""
        return (*self._first, *self._tasks)

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        self._ask_all()
        return min(self._timetable.values())

    def _ask_all(self) -> None:
        self._asked_at = clock.now_s()
        self._timetable = {task: self._next_run_at(task) for task in self.tasks}

    @property
    def failing(self) -> Mapping[str, str]:
        """The tasks that failed in their last run, by name, and what they raised. From any thread."""
        return {_name(task): failure.text for task, failure in list(self._failures.items())}

    def run(self, *, news: bool = True) -> float:
        """Run what is due; return when to run next, on `clock`, in seconds.

        Whatever one task raises is logged when it changes, and that task rests; the others run.

        Args:
            news: whether something may be due that is not by the timetable. Without news that holds for `TIMETABLE_S`: acks
                are looked at a hundred times a second, and mostly nothing else is due.

        Raises:
            redis.exceptions.ConnectionError: or another one of `UNREACHABLE`: no task can do anything.
        """
        now = clock.now_s()
        if news or now - self._asked_at >= TIMETABLE_S:
            self._ask_all()
        due = [task for task, at in self._timetable.items() if at <= now]
        if not due:
            return min(self._timetable.values())
        together = self._together()
        if not news and all(task in self._first and task not in together for task in due):
            # Acks, mostly: what this makes due besides is asked for by the timetable.
            for task in due:
                self._run(task)
            self._timetable.update((task, self._next_run_at(task)) for task in due)
            return min(self._timetable.values())
        lost, self._lost = self._lost, None
        latest = dict.fromkeys(together, now + TOGETHER_S) if any(task in together for task in due) else {}
        self._run_due(self._first, now, latest)
        for task in sorted(self._tasks, key=lambda one: one is lost):
            if self._next_run_at(task) <= latest.get(task, now):
                self._run_due(self._first, clock.now_s(), {})
                self._run(task)
        # One task may have made others due.
        return self.next_run_at

    def alone(self, task: MaintenanceTask, step: Callable[[], None]) -> None:
        """Do a step of a task that has not failed, within the run of another one; if it fails, so does the task, and rests.

        Raises as `run` does.
        """
        if task in self._failures:
            return
        try:
            step()
        except UNREACHABLE:
            raise
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._note(task, error)

    def take_longest(self) -> tuple[str, float]:
        """Return the name of the maintenance task that took longest since the last call, and its seconds; '' where none ran."""
        longest, self._longest = self._longest, ("", 0.0)
        return longest

    def _run_due(self, tasks: Sequence[MaintenanceTask], now: float, latest: Mapping[MaintenanceTask, float]) -> None:
        for task in tasks:
            if self._next_run_at(task) <= latest.get(task, now):
                self._run(task)

    def _run(self, task: MaintenanceTask) -> None:
        began = clock.now_s()
        try:
            task.run()
        except UNREACHABLE:
            # Some of them are refusals, too: a server that loads its data, a replica.
            self._lost = task
            raise
        except Exception as error:  # noqa: BLE001 - a task fails alone, whatever it raises
            self._note(task, error)
        else:
            if self._failures.pop(task, None) is not None:
                logger.info("%s (maintenance) runs again", _name(task))
        finally:
            took_s = clock.now_s() - began
            if took_s > self._longest[1]:
                self._longest = (_name(task), took_s)

    def _next_run_at(self, task: MaintenanceTask) -> float:
        failure = self._failures.get(task)
        rests_until = float("-inf") if failure is None else failure.rests_until
        if task in self._of_leader and not self._leads():
            return math.inf
        try:
            return max(task.next_run_at, rests_until)
        except Exception as error:  # noqa: BLE001 - as above
            if rests_until <= clock.now_s():
                self._note(task, error)
            return self._failures[task].rests_until

    def _note(self, task: MaintenanceTask, error: Exception) -> None:
        """Note what a task raised, and let it rest. Heartbeats rest for `FIRST_REST_S` only: leases wait for them."""
        known = self._failures.get(task)
        longest_s = FIRST_REST_S if task in self._first else LONGEST_REST_S
        rest_s = FIRST_REST_S if known is None else min(2 * known.rest_s, longest_s)
        text = f"{type(error).__name__}: {text_of(error)}"
        self._failures[task] = _Failure(text, rest_s, clock.now_s() + rest_s)
        self.failed += 1
        if known is not None and known.text == text:
            return
        if isinstance(error, ResponseError):
            logger.error("%s (maintenance): the broker refuses it (%s); trying again", _name(task), error)
        else:
            logger.error(
                "%s (maintenance) failed and is tried again; the others run. This is a defect of celery-redis-plus, please "
                "report it", _name(task), exc_info=error,
            )  # fmt: skip


def _name(task: MaintenanceTask) -> str:
    return type(task).__name__.lower()
