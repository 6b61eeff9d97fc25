"""A claim that is on its way while the loop goes on: with a pool at work, a fifth of its main process's time was waiting.

A solo worker's loop goes on with a task. Should that be long, another thread gives back what has come meanwhile: what the server
has given out and nobody has read is kept alive by no heartbeat, and others could have begun with it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus import clock
from celery_redis_plus.broker.holding import Settlement
from celery_redis_plus.topology import forks

if TYPE_CHECKING:
    from celery_redis_plus.message import Claimed
    from celery_redis_plus.transport.channel import Channel
    from celery_redis_plus.transport.session import Session

logger = logging.getLogger(__name__)

#: Seconds after which the loop's own task is so long that what was claimed ahead of its end goes back.
LONG_S = 0.005


class ClaimAhead:
    """At most one claim of a session whose reply has not been taken yet."""

    def __init__(self, session: Session) -> None:
        """Claim for channels of `session`."""
        self._session = session
        self._channel: Channel | None = None
        self._names: Sequence[str] = ()
        self._asked_at = 0.0
        self._answer: tuple[Any, Exception | None] | None = None
        #: When what it brings goes back if nobody has taken it, on `clock`, in seconds.
        self._goes_back_at = math.inf
        self._reset()
        forks.watch(self)

    def _reset(self) -> None:
        #: Who decides what becomes of an answer.
        self._lock = threading.Lock()

    def forked(self) -> None:
        """Have a lock of its own, in a child."""
        self._reset()

    @property
    def out(self) -> bool:
        """Whether a claim has been sent and not been taken."""
        return self._channel is not None

    @property
    def may_go_back(self) -> bool:
        """Whether a claim is out that `give_back` has to look after."""
        return self._goes_back_at < math.inf

    def send(
        self, channel: Channel, queues: Sequence[str], credit: int, *, hold: bool = False, before_work: bool = False
    ) -> bool:
        """Send a claim; return False where it has to be made the other way, because a queue has rules for its consumers.

        With `hold` it leaves with the next write. With `before_work` somebody calls `give_back` from time to time.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        self._answer = None
        asked_at = clock.now_s()
        names = self._session.claims.post(channel, queues, credit, self._answered, hold=hold)
        if names is None:
            return False
        self._channel, self._names, self._asked_at = channel, names, asked_at
        self._goes_back_at = asked_at + LONG_S if before_work else math.inf
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
        with self._lock:
            channel, answer = self._channel, self._answer
            if channel is None or answer is None:
                return False
            self._end()
        reply, error = answer
        if error is not None:
            raise error
        channel.claimed(self._session.claims.batch_of(reply, self._names), self._asked_at)
        return True

    def _end(self) -> None:
        self._channel = self._answer = None
        self._goes_back_at = math.inf

    def give_back(self) -> None:
        """Return what a claim has brought whose time is over, in place. From any thread; never raises.

        The loop claims anew when it comes to it, and not before this has ended.
        """
        if clock.now_s() < self._goes_back_at:
            return
        try:
            self._session.wire.collect()
            with self._lock:
                channel, answer = self._channel, self._answer
                if channel is None or answer is None or answer[1] is not None:
                    return
                try:
                    self._return(self._session.claims.batch_of(answer[0], self._names).messages)
                finally:
                    channel.hot.update(dict.fromkeys(self._names))
                    self._end()
            self._session.waker.wake()
        except (RedisError, OSError) as error:
            # The duties know of what has not gone back, and the loop meets the failure.
            logger.debug("giving back: %s", error)

    def _return(self, messages: list[Claimed]) -> None:
        session = self._session
        register = session.service.register
        fresh = register.admit(messages, session.id, self._asked_at)
        held = [taken for message in fresh if (taken := register.settle(message.tag, Settlement.HAND_BACK)) is not None]
        session.settler.settle_or_order(held, Settlement.HAND_BACK)

    def wait(self) -> None:
        """Wait for the reply of a claim that is out. Raises as the connection fails."""
        self._session.wire.catch_up(until=self._is_answered)

    def _is_answered(self) -> bool:
        return self._answer is not None

    def finish(self) -> None:
        """Wait for the reply of a claim that is out, and hand it over. Raises as `take` does, or as the connection fails."""
        if self._channel is not None and not self._session.broken:
            self.wait()
            self.take()

    def check(self) -> None:
        """Give the connection up where the server has been silent for as long as it may be."""
        timeout_s = self._session.options.socket_timeout
        if self.out and self._answer is None and timeout_s is not None and clock.now_s() - self._asked_at > timeout_s:
            self._session.wire.abandon(RedisTimeoutError("the server did not answer a claim"))
