"""Clears away fanout subscribers that gave no sign of life in time, and tells this process of deaths."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus import clock, signals
from celery_redis_plus.broker.fanout.subscriber_registry import SECOND_CHANCE_S
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask
from celery_redis_plus.signals import SubscriberDied, notify

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberDeath, SubscriberRegistry
    from celery_redis_plus.keys import FanoutKeys
    from celery_redis_plus.maintenance.leader import Leadership

logger = logging.getLogger(__name__)


class DeadSubscribers(MaintenanceTask):
    """The task of the leader, and of each process that listens to signals: each of these is told of every death."""

    def __init__(
        self,
        registry: SubscriberRegistry,
        bindings: Bindings,
        fanout_keys: Callable[[str], FanoutKeys],
        leadership: Leadership,
    ) -> None:
        """Look in `registry`; `fanout_keys` spells the keys of an exchange."""
        self._registry = registry
        self._bindings = bindings
        self._fanout_keys = fanout_keys
        self._leadership = leadership
        self._failures = KeyFailures(logger, "has dead subscribers that cannot be cleared away", kind="exchange")
        self._due_at = clock.now_s() + random.uniform(1, SECOND_CHANCE_S)  # noqa: S311 - spreads load, guards nothing
        #: Server's time of the last look for deaths, by exchange.
        self._reaped_ms: dict[str, int] = {}

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return self._due_at if self._leadership.leads or signals.connected() else math.inf

    def run(self) -> None:
        """Clear away the dead of all exchanges, and tell of deaths, by any process. Raises as `CommandConnection.call` does."""
        self._due_at = clock.now_s() + random.uniform(0.9, 1.0) * SECOND_CHANCE_S  # noqa: S311 - spreads load, guards nothing
        for exchange, record in self._bindings.of_type("fanout").items():
            with self._failures.alone(exchange):
                self._reap(exchange, auto_delete=record.auto_delete)

    def _reap(self, exchange: str, *, auto_delete: bool) -> None:
        keys, since_ms = self._fanout_keys(exchange), self._reaped_ms.get(exchange)
        now_ms, deaths = self._registry.reap(keys, since_ms, auto_delete=auto_delete)
        self._reaped_ms[exchange] = now_ms
        for death in deaths:
            _tell(exchange, death, ours=death.at_ms == now_ms)

    def forget_durable(self, exchange: str, queue: str) -> None:
        """Forget the durable subscriber of a queue that vanished. Raises as `CommandConnection.call` does."""
        self._registry.forget_durable(self._fanout_keys(exchange), queue)


def _tell(exchange: str, death: SubscriberDeath, *, ours: bool) -> None:
    logger.log(
        logging.WARNING if ours else logging.DEBUG,
        "subscriber %s of exchange %r on %s is dead: no sign of life within its time, nor after its second chance; %d "
        "broadcast(s) at most, after entry %s, were not processed by it",
        death.id, exchange, death.host, death.unread, death.cursor, extra={"exchange": exchange},
    )  # fmt: skip
    notify(SubscriberDied(death.queue, exchange, death.id, death.host, death.unread, death.cursor, death.at_ms))
