"""Runs the duties that are due; one that the server refuses does not keep the others from theirs.

Heartbeats come before each of the others, which give the thread back after a slice (`slices.py`).
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

#: Seconds for which a duty that was refused rests.
REST_S = 1.0


class MaintenanceTask(Protocol):
    """One kind of background work."""

    @property
    def due_at(self) -> float:
        """When to run next, on `clock`, in seconds."""

    def run(self) -> None:
        """Do what is due."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    text: str
    rests_until: float


class TaskRunner:
    """Takes all duties in turn."""

    def __init__(self, duties: Sequence[MaintenanceTask], *, first: Sequence[MaintenanceTask] = ()) -> None:
        """Take `duties` in this order, and those of `first` that are due before each of them."""
        self._duties = duties
        self._first = first
        #: What took longest since `take_longest` was called: name and seconds.
        self._longest = ("", 0.0)
        self._refused: dict[MaintenanceTask, _Refusal] = {}

    @property
    def due_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return min(map(self._due_at, (*self._first, *self._duties)))

    def run(self) -> None:
        """Run what is due.

        Raises:
            redis.exceptions.ConnectionError: and its kin, as `translation.translate` names them: the server is away. A refusal
                (no permission, memory full, a key of another type) is logged when it changes, and tried again.
        """
        now = clock.now_s()
        for duty in self._duties:
            for first in self._first:
                self._run_if_due(first, clock.now_s())
            self._run_if_due(duty, now)

    def take_longest(self) -> tuple[str, float]:
        """Return the name of the duty that took longest since the last call, and its seconds; '' where none ran."""
        longest, self._longest = self._longest, ("", 0.0)
        return longest

    def _run_if_due(self, duty: MaintenanceTask, now: float) -> None:
        if self._due_at(duty) > now:
            return
        began = clock.now_s()
        try:
            duty.run()
        except RedisConnectionError:
            # Some of them are refusals, too: a server that loads its data, a replica.
            raise
        except ResponseError as error:
            self._note(duty, str(error), now)
        else:
            if self._refused.pop(duty, None) is not None:
                logger.info("%s: the broker takes it again", _name(duty))
        finally:
            took_s = clock.now_s() - began
            if took_s > self._longest[1]:
                self._longest = (_name(duty), took_s)

    def _due_at(self, duty: MaintenanceTask) -> float:
        refusal = self._refused.get(duty)
        return duty.due_at if refusal is None else max(duty.due_at, refusal.rests_until)

    def _note(self, duty: MaintenanceTask, text: str, now: float) -> None:
        known = self._refused.get(duty)
        self._refused[duty] = _Refusal(text, now + REST_S)
        if known is None or known.text != text:
            logger.error("%s: the broker refuses it (%s); trying again", _name(duty), text)


def _name(duty: MaintenanceTask) -> str:
    return type(duty).__name__.lower()
