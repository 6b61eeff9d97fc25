"""Redrives dead letters of the queues that say so by `x-redrive`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.dead_letters.redriver import Walk
from celery_redis_plus.broker.line_interval import LineInterval
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.leader import LeaderTask
from celery_redis_plus.maintenance.maintenance_task import Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.arguments.redrive_rule import RedriveRule
    from celery_redis_plus.broker.dead_letters.redriver import Redriver
    from celery_redis_plus.maintenance.leader import Leadership
    from celery_redis_plus.maintenance.unconsumed_queues import UnconsumedQueues

logger = logging.getLogger(__name__)

#: Seconds between two looks at a queue: a tenth of its `after`, within these.
SHORTEST_REST_S, LONGEST_REST_S = 1.0, 30.0
#: Seconds after which a walk begins anew: one that died while the server's clock was behind was passed over.
WALK_S = 3600.0
#: Seconds between two lines about a queue.
LOG_INTERVAL_S = 60.0


@dataclass(slots=True)
class _Queue:
    rule: RedriveRule
    #: When the walk began, and when `tokens` was right; on `clock`, in seconds.
    began_at: float
    filled_at: float
    #: How many may go.
    tokens: float = 1.0
    #: When to look next.
    next_at: float = 0.0
    walk: Walk = field(default_factory=Walk)

    def fill(self, now: float) -> None:
        """Let more go, for the time that has passed: those of a second at most."""
        rate = self.rule.rate_per_s
        self.tokens = min(self.tokens + rate * (now - self.filled_at), max(rate, 1.0))
        self.filled_at = now
        if now - self.began_at > WALK_S:
            self.walk, self.began_at = Walk(), now

    def rest(self, now: float) -> None:
        """Say when to look next."""
        if self.walk.at_end:
            self.next_at = now + min(max(self.rule.after_ms / 10_000, SHORTEST_REST_S), LONGEST_REST_S)
        else:
            self.next_at = now + max(0.0, 1.0 - self.tokens) / self.rule.rate_per_s


class Redrive(LeaderTask):
    """The leader's task that puts failed messages back to work."""

    def __init__(self, redriver: Redriver, always_swept: UnconsumedQueues, leadership: Leadership) -> None:
        """Look for rules among the `always_swept` queues: with each new list of them, and in each epoch of `leadership`."""
        super().__init__(leadership)
        self._redriver = redriver
        self._always_swept = always_swept
        self._names: list[str] | None = None
        self._queues: dict[str, _Queue] = {}
        self._failures = KeyFailures(logger, "has dead letters that cannot be redriven")
        self._lines = LineInterval(LOG_INTERVAL_S)

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        if self._names is not self._always_swept.queues or self._is_new_leader:
            return 0.0
        return min((queue.next_at for queue in self._queues.values()), default=float("inf"))

    def run(self) -> None:
        """Redrive what is due until the slice is over. Raises as `CommandConnection.call` does."""
        if self._is_new_leader:
            self._epoch, self._queues = self._leadership.epoch, {}
        if self._names is not self._always_swept.queues:
            self._look()
        slice_ = Slice()
        for name, queue in sorted(self._queues.items(), key=lambda item: item[1].next_at):
            now = clock.now_s()
            if queue.next_at > now or slice_.over:
                return
            queue.fill(now)
            # One whose keys hold what they should not rests as one without dead letters.
            queue.walk.at_end = True
            with self._failures.alone(name):
                count = self._redriver.redrive(name, queue.rule, queue.walk, int(queue.tokens))
                queue.tokens -= count
                self._log(name, count)
            queue.rest(now)

    def _look(self) -> None:
        names = self._always_swept.queues
        rules = self._redriver.rules(names) if names else {}
        before, now = self._queues, clock.now_s()
        self._queues = {
            name: before[name] if name in before and before[name].rule == rule else _Queue(rule, now, now)
            for name, rule in rules.items()
        }
        self._names = names

    def _log(self, name: str, count: int) -> None:
        if count and (told := self._lines.count(name, count)):
            logger.info("queue %r: %d dead letter(s) are back to work (x-redrive)", name, told, extra={"queue": name})
