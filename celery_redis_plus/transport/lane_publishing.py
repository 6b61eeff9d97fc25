"""Publishing over several lanes: an exchange's message goes to each lane that has a queue for it, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.lanes.by_queue import of_queue
from celery_redis_plus.connection.lanes import lane_of
from celery_redis_plus.errors import PublishRefused
from celery_redis_plus.transport.publishing import ExchangePublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redis_plus.broker.exchanges.bindings import Check
    from celery_redis_plus.broker.publishing.attempt import PublishAttempt
    from celery_redis_plus.consumer.publisher_session import PublisherSession


class LanePublisher(ExchangePublisher):
    """Publishes to the queues of one lane, and to its fanout exchanges."""

    def __init__(self, connection: PublisherSession, keep_unrouted: Callable[..., None]) -> None:
        """Publish over one connection; `keep_unrouted` does what `_unrouted` does, for all lanes."""
        super().__init__(connection)
        self._keep_unrouted = keep_unrouted

    def publish_here(self, message: dict[str, Any], queue: str, attempt: PublishAttempt, *, mandatory: bool) -> None:
        """Publish a message to a queue of this lane."""
        self.send(message, "", queue, attempt, mandatory=mandatory)

    def take(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> bool:  # fmt: skip
        """Give a message to an exchange as far as it is in this lane; return False where it has no recipient here."""
        return self._take(message, exchange, routing_key, attempt, mandatory=mandatory)

    def known_route(self, message: dict[str, Any], exchange: str, routing_key: str) -> tuple[str, ...] | None:
        """Return this lane's queues for a message, by the bindings known here; None where none were read yet."""
        return self._connection.bindings.known_route(exchange, routing_key, message["headers"])

    def begin_check(self, exchange: str) -> Check:
        """Ask whether bindings have been added; `end_check` waits for the answer."""
        return self._connection.bindings.check(exchange)

    def end_check(self, check: Check) -> bool:
        """Return whether they have."""
        self._connection.commands.read_until()
        return check.moved

    def _unrouted(self, *args: Any, **kwargs: Any) -> None:
        """Keep it where all lanes do."""
        self._keep_unrouted(*args, **kwargs)


class LanesPublisher(ExchangePublisher):
    """Publishes over all lanes. Messages without a recipient go to the lane of the queue of undelivered ones."""

    def __init__(self, connections: Sequence[PublisherSession]) -> None:
        """Publish over one connection to each lane."""
        super().__init__(connections[lane_of(UNDELIVERED, len(connections))])
        #: The publishers of the lanes.
        self.lanes = [LanePublisher(connection, self._unrouted) for connection in connections]

    def _lane_of(self, name: str) -> LanePublisher:
        return of_queue(self.lanes, name)

    def to_queue(self, message: dict[str, Any], queue: str, attempt: PublishAttempt) -> bool:
        """Give a message to a queue; return False where the queue is gone and must not come back."""
        return self._lane_of(queue).to_queue(message, queue, attempt)

    def send(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> None:  # fmt: skip
        """Route a message, and return when its queues and replicas have it."""
        if exchange:
            super().send(message, exchange, routing_key, attempt, mandatory=mandatory)
        else:
            self._lane_of(routing_key).publish_here(message, routing_key, attempt, mandatory=mandatory)

    def _take(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> bool:  # fmt: skip
        """Give a message to an exchange; return False where it has no recipient in any lane."""
        if self._connection.bindings.is_fanout(exchange):
            return self._lane_of(exchange).take(message, exchange, routing_key, attempt, mandatory=mandatory)
        return self._route(message, exchange, routing_key, attempt)

    def _route(self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt) -> bool:
        """Give a message to the queues of all lanes; return False where none takes it.

        By the bindings known here, as long as they give a queue: a lane without one is asked meanwhile whether it has more.
        """
        known = [lane.known_route(message, exchange, routing_key) for lane in self.lanes]
        idle: dict[LanePublisher, Check] = {}
        if any(known):
            idle = {lane: lane.begin_check(exchange) for lane, queues in zip(self.lanes, known, strict=True) if queues == ()}
        routed = False
        refused: PublishRefused | None = None
        for lane in sorted(self.lanes, key=idle.__contains__):
            if lane in idle and not lane.end_check(idle[lane]):
                continue
            try:
                routed = lane.take(message, exchange, routing_key, attempt, mandatory=False) or routed
            except PublishRefused as error:
                # As within a lane: each queue decides for itself.
                refused = error
        if refused is not None:
            raise refused
        return routed
