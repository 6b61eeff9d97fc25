"""A claim that is on its way while the loop goes on: with a pool at work, a fifth of its main process's time was waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus import clock

if TYPE_CHECKING:
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.channel import Channel


class PendingClaim:
    """At most one claim of a session whose reply has not been taken yet. For the loop's thread."""

    def __init__(self, session: BrokerConnection) -> None:
        """Claim for channels of `session`."""
        self._session = session
        self._channel: Channel | None = None
        self._names: Sequence[str] = ()
        self._asked_at = 0.0
        self._answer: tuple[Any, Exception | None] | None = None

    @property
    def out(self) -> bool:
        """Whether a claim has been sent and not been taken."""
        return self._channel is not None

    def send(self, channel: Channel, queues: Sequence[str], credit: int) -> bool:
        """Send a claim; return False where it has to be made the other way, because a queue has rules for its consumers.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        self._answer = None
        asked_at = clock.now_s()
        names = self._session.claims.post(channel, queues, credit, self._answered)
        if names is None:
            return False
        self._channel, self._names, self._asked_at = channel, names, asked_at
        # A bell that rings from now on is news.
        channel.cool(names)
        return True

    def _answered(self, reply: Any, error: Exception | None) -> None:
        """Keep the reply, in the thread that reads it."""
        self._answer = (reply, error)
        if threading.get_ident() != self._session.loop_thread:
            self._session.waker.wake()

    def take(self) -> bool:
        """Hand what has come over to the channel; return False where nothing has.

        Raises:
            redis.exceptions.RedisError: the server refused the claim, as `translation.translate` names it.
        """
        channel, answer = self._channel, self._answer
        if channel is None or answer is None:
            return False
        self._channel = self._answer = None
        reply, error = answer
        if error is not None:
            raise error
        channel.claimed(self._session.claims.batch_of(reply, self._names), self._asked_at)
        return True

    def finish(self) -> None:
        """Wait for the reply of a claim that is out, and hand it over. Raises as `take` does, or as the connection fails."""
        if self._channel is not None and not self._session.broken:
            self._session.commands.read_until(until=lambda: self._answer is not None)
            self.take()

    def check(self) -> None:
        """Give the connection up where the server has been silent for as long as it may be."""
        timeout_s = self._session.options.socket_timeout
        if self.out and self._answer is None and timeout_s is not None and clock.now_s() - self._asked_at > timeout_s:
            self._session.commands.abort(RedisTimeoutError("the server did not answer a claim"))
