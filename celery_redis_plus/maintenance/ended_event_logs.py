"""Ends the event logs that are not written any more: of deleted queues, and of those whose log was switched off.

They stay for those who read them, and no sweep looks at them then.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues

logger = logging.getLogger(__name__)

#: Seconds between two looks at the names of all event logs.
CHECK_S = 20.0
#: Most of these logs in one run, chosen at random: where there are more, each has its turn in time.
LOGS_A_RUN = 100


class EndedEventLogs(MaintenanceTask):
    """The leader's task that ends the event logs of queues that write none."""

    def __init__(self, queues: Queues) -> None:
        """Look through `queues`."""
        self._queues = queues
        self._failures = KeyFailures(logger, "has an event log that cannot be trimmed and ended")

    def run(self) -> None:
        """Trim some of them, and remove those that are over. Raises as `CommandConnection.call` does."""
        self._due_at = clock.now_s() + CHECK_S
        slice_ = Slice()
        ended = self._queues.registry.without_event_log(self._queues.registry.event_logged())
        for queue in random.sample(ended, min(len(ended), LOGS_A_RUN)):
            if slice_.over:
                return
            overrun = 0
            with self._failures.alone(queue):
                overrun = self._queues.end_event_log(queue)
            if overrun:
                logger.warning(
                    "%d event(s) of queue %r, which writes none any more, are removed that a registered reader has not read "
                    "(options event_log_max_age, event_log_hard_maxlen)",
                    overrun, queue, extra={"queue": queue},
                )  # fmt: skip
