"""Puts policies into force, or ends them, where nobody else does: the time of one is over, or its setter died on the way."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.policies import Policies
from celery_redis_plus.errors import PreconditionFailed
from celery_redis_plus.maintenance.leader import LeaderTask
from celery_redis_plus.maintenance.maintenance_task import Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.policies import PolicyList
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.maintenance.leader import Leadership

logger = logging.getLogger(__name__)

#: Seconds between two looks at the list of policies. A policy that was seen ends on time.
LOOK_S = 20.0


class PolicyChanges(LeaderTask):
    """The leader's task that keeps the arguments of all lasting queues as the policies say."""

    def __init__(self, queues: Queues, policies: PolicyList, leadership: Leadership) -> None:
        """Steer `queues`; all of them where `leadership` tells of another epoch: what an earlier leader saw is not known."""
        super().__init__(leadership)
        self._queues = queues
        self._policies = policies
        #: The policies that are in force everywhere, but for the queues in `_waiting`.
        self._seen = Policies(b"", [], [], 0)
        self._waiting: deque[str] = deque()
        #: Queues in which a policy could not be put into force yet: they are tried again with each look.
        self._refused: set[str] = set()
        self._failures = KeyFailures(logger, "cannot be steered")

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return 0.0 if self._waiting else super().next_run_at

    def run(self) -> None:
        """Steer queues until the slice is over. Raises as `CommandConnection.call` does."""
        now = clock.now_s()
        if self._is_new_leader or now >= self._due_at:
            self._look(now)
        slice_ = Slice()
        while self._waiting and not slice_.over:
            name = self._waiting[0]
            with self._failures.alone(name):
                try:
                    self._queues.steer(name, policies=self._seen)
                except PreconditionFailed as error:
                    if name not in self._refused:
                        logger.warning("a policy is not in force yet: %s", error, extra={"queue": name})
                    self._refused.add(name)
                else:
                    self._refused.discard(name)
            self._waiting.popleft()

    def _look(self, now: float) -> None:
        policies = self._policies.remove_ended()
        is_new_leader, self._epoch = self._is_new_leader, self._leadership.epoch
        is_new, self._seen = policies.version != self._seen.version, policies
        if is_new or (is_new_leader and policies.version):
            self._waiting = deque(self._queues.registry.lasting())
            self._refused.clear()
        else:
            self._waiting.extend(self._refused)
        end_ms = min((one.until_ms for one in policies.all if one.until_ms), default=math.inf)
        self._due_at = now + min(LOOK_S, max(0.05, (end_ms - policies.now_ms) / 1000))
