"""Runs the maintenance tasks that are due; one that the server refuses does not keep the others from theirs.

Heartbeats come before each of the others, which give the thread back after a slice (`time_slices.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from celery_redis_plus import clock

logger = logging.getLogger(__name__)

#: Seconds until a maintenance task that the server refused runs again.
REFUSED_RETRY_S = 1.0


class MaintenanceTask(Protocol):
    """One kind of background work."""

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""

    def run(self) -> None:
        """Do what is due."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    text: str
    rests_until: float


class TaskRunner:
    """Runs all maintenance tasks in turn."""

    def __init__(self, tasks: Sequence[MaintenanceTask], *, first: Sequence[MaintenanceTask] = ()) -> None:
        """Take `tasks` in this order, and those of `first` that are due before each of them."""
        self._tasks = tasks
        self._first = first
        #: What took longest since `take_longest` was called: name and seconds.
        self._longest = ("", 0.0)
        self._refused: dict[MaintenanceTask, _Refusal] = {}

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return min(map(self._next_run_at, (*self._first, *self._tasks)))

    def run(self) -> None:
        """Run what is due.

        Raises:
            redis.exceptions.ConnectionError: or a kin, as `error_translation.translate` names them: the server is unreachable.
                A refusal (no permission, memory full, a key of another type) is logged when it changes, and tried again.
        """
        now = clock.now_s()
        for task in self._tasks:
            for first in self._first:
                self._run_if_due(first, clock.now_s())
            self._run_if_due(task, now)

    def take_longest(self) -> tuple[str, float]:
        """Return the name of the maintenance task that took longest since the last call, and its seconds; '' where none ran."""
        longest, self._longest = self._longest, ("", 0.0)
        return longest

    def _run_if_due(self, task: MaintenanceTask, now: float) -> None:
        if self._next_run_at(task) > now:
            return
        began = clock.now_s()
        try:
            task.run()
        except RedisConnectionError:
            # Some of them are refusals, too: a server that loads its data, a replica.
            raise
        except ResponseError as error:
            self._note(task, str(error), now)
        else:
            if self._refused.pop(task, None) is not None:
                logger.info("%s: the broker takes it again", _name(task))
        finally:
            took_s = clock.now_s() - began
            if took_s > self._longest[1]:
                self._longest = (_name(task), took_s)

    def _next_run_at(self, task: MaintenanceTask) -> float:
        refusal = self._refused.get(task)
        return task.next_run_at if refusal is None else max(task.next_run_at, refusal.rests_until)

    def _note(self, task: MaintenanceTask, text: str, now: float) -> None:
        known = self._refused.get(task)
        self._refused[task] = _Refusal(text, now + REFUSED_RETRY_S)
        if known is None or known.text != text:
            logger.error("%s: the broker refuses it (%s); trying again", _name(task), text)


def _name(task: MaintenanceTask) -> str:
    return type(task).__name__.lower()
