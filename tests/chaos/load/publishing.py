"""Publishes to the queues of the load, each message with what its queue is for, and broadcasts."""

from __future__ import annotations

import time
from typing import Any

from celery_redis_plus.errors import QueueFull
from tests.chaos.app import bound_queue
from tests.chaos.load.queues import BINDINGS, BOUNDED, DIRECT, LIMITED, ONCE, PLAIN, POISON, SINGLE, TENANTS, THROTTLED, TOPIC
from tests.chaos.load.subscribers import EXCHANGE
from tests.chaos.publishers import RETRY, Confirmed, Publisher

#: Messages with the same `x-deduplication-id`, one behind the other.
COPIES = 3
#: Ids that are used in turn, each again after some seconds.
IDS = 8
#: Parts of a second by which `x-delay` delays, at least and at most.
DELAY_MS = (50, 2_000)
#: Message groups of `TENANTS`.
GROUPS = 4
#: Of `LIMITED` and of tasks of the plain queue.
LIMITER = "storm:concurrency=2"


class FeaturePublisher(Publisher):
    """Sends one message after the other, with a feature each; `confirmed` has those that must come to their end as tasks."""

    #: For how long the server knows an `x-deduplication-id`.
    dedup_ttl_ms = 600_000

    def _send(self) -> None:
        name = f"{self._prefix}{self.sent}"
        send = self._random.choice(
            (
                *(self._single, self._bounded, self._throttled, self._once, self._poison, self._later, self._news),
                *(self._picked, self._ordered, self._of_a_tenant, self._limited),
            )
        )
        began_at = time.monotonic()
        if send(name):
            self.confirmed.append(Confirmed(name, began_at, time.monotonic(), replicated=False))
        self.sent += 1

    def _single(self, name: str) -> bool:
        return self._task(name, SINGLE)

    def _bounded(self, name: str) -> bool:
        try:
            return self._task(name, BOUNDED)
        except QueueFull:
            return False

    def _throttled(self, name: str) -> bool:
        return self._task(name, THROTTLED)

    def _once(self, name: str) -> bool:
        """One of several with the same id: which of them runs is the judge's to say."""
        scope = "until-acked" if self._random.random() < 0.5 else "ttl"
        number = self.sent // (COPIES * 9)
        if scope == "until-acked":
            # The id is free again by the time.
            number %= IDS
        named = {"x-deduplication-id": f"{self._prefix}{scope}{number}", "x-deduplication-scope": scope}
        self._task(name, ONCE, headers={**named, "x-deduplication-ttl": self.dedup_ttl_ms})
        return False

    def _poison(self, name: str) -> bool:
        """It fails until it is a dead letter, and ends as such."""
        self._task(name, POISON, task="chaos.poison", arguments=[self._random.random() < 0.5])
        return True

    def _later(self, name: str) -> bool:
        return self._task(name, PLAIN, headers={"x-delay": self._random.randint(*DELAY_MS)})

    def _of_a_tenant(self, name: str) -> bool:
        return self._task(name, TENANTS, headers={"x-message-group": f"tenant {self._random.randrange(GROUPS)}"})

    def _limited(self, name: str) -> bool:
        return self._task(name, self._random.choice((LIMITED, PLAIN)), headers={"x-limiter": LIMITER})

    def _picked(self, name: str) -> bool:
        return self._route(name, DIRECT, self._random.choice(("pick", "pack")))

    def _ordered(self, name: str) -> bool:
        """A topic: the last key is that of two queues, and the task runs twice."""
        return self._route(name, TOPIC, self._random.choice(("order", "order.7.new", "bill.7.paid", "order.7.paid")))

    def _route(self, name: str, exchange: str, key: str) -> bool:
        queues = [bound_queue(binding) for binding in BINDINGS.items()]
        named = {"exchange": exchange, "routing_key": key, "declare": queues}
        self.app.send_task("chaos.run", [name, 0.0], retry=True, retry_policy=RETRY, **named)
        return True

    def _news(self, name: str) -> bool:
        with self.app.producer_or_acquire() as producer:
            producer.publish(name, exchange=EXCHANGE, declare=[EXCHANGE], retry=True, retry_policy=RETRY)
        return False

    def _task(self, name: str, queue: str, *, task: str = "chaos.run", arguments: Any = (0.0,), **options: Any) -> bool:
        self.app.send_task(task, [name, *arguments], queue=queue, retry=True, retry_policy=RETRY, **options)
        return True
