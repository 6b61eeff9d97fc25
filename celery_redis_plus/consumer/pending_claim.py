"""A claim that is on its way while the loop goes on: with a pool at work, a fifth of its main process's time was waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus import clock

if TYPE_CHECKING:
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.fetch_request import FetchRequest
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers
    from celery_redis_plus.consumer.restricted_queues import RestrictedQueues


class PendingClaim:
    """At most one claim of a connection whose reply has not been taken yet. For the loop's thread."""

    def __init__(self, connection: BrokerConnection, restricted_queues: RestrictedQueues) -> None:
        """Claim over `connection` by `restricted_queues`."""
        self._connection = connection
        self._restricted_queues = restricted_queues
        self._consumers: QueueConsumers | None = None
        self._names: Sequence[str] = ()
        self._asked_at = 0.0
        self._answer: tuple[Any, Exception | None] | None = None

    @property
    def out(self) -> bool:
        """Whether a claim has been sent and its reply not been taken."""
        return self._consumers is not None

    def send(self, consumers: QueueConsumers, request: FetchRequest) -> bool:
        """Send a claim; return False where it has to be made the other way, because a queue has rules for its consumers.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        self._answer = None
        asked_at = clock.now_s()
        names = self._restricted_queues.send(request, self._answered)
        if names is None:
            return False
        self._consumers, self._names, self._asked_at = consumers, names, asked_at
        # A wake-up that comes from now on is news.
        consumers.mark_checked(names)
        return True

    def _answered(self, reply: Any, error: Exception | None) -> None:
        """Keep the reply, in the thread that reads it."""
        self._answer = (reply, error)
        if threading.get_ident() != self._connection.loop_thread:
            self._connection.waker.wake()

    def take(self) -> bool:
        """Hand what has come over to the channel's consumers; return False where nothing has.

        Raises:
            redis.exceptions.RedisError: the server refused the claim, as `translation.translate` names it.
        """
        consumers, answer = self._consumers, self._answer
        if consumers is None or answer is None:
            return False
        self._consumers = self._answer = None
        reply, error = answer
        if error is not None:
            raise error
        consumers.add(self._restricted_queues.read(reply, self._names), self._asked_at)
        return True

    def finish(self) -> None:
        """Wait for the reply of a claim that is out, and hand it over. Raises as `take` does, or as the connection fails."""
        if self._consumers is not None and not self._connection.broken:
            self._connection.commands.read_until(until=lambda: self._answer is not None)
            self.take()

    def check(self) -> None:
        """Give the connection up where the server has been silent for as long as it may be."""
        timeout_s = self._connection.options.socket_timeout
        if self.out and self._answer is None and timeout_s is not None and clock.now_s() - self._asked_at > timeout_s:
            self._connection.commands.abort(RedisTimeoutError("the server did not answer a claim"))
