"""Waits for room in a full queue or exchange: one blocked call a waiting publisher, woken by the script that makes room.

The line of waiting publishers is `waiting_publishers:{Q}` (waiter -> ticket), so that the first that came is served first; each
has a wake-up of its own beside it. A publisher comes back by itself every second: one that does not is taken for dead, so that
no publisher waits behind it (`lua/include/release_capacity.lua`).
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import ServerTimeout
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.blocking_connection import BlockingConnection
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import FanoutKeys, QueueKeys


class PublisherWaitQueue:
    """The waiting publishers of one session: several threads may wait at a time, each over a connection of its own."""

    def __init__(
        self,
        commands: CommandConnection,
        keys_of: Callable[[str], QueueKeys | FanoutKeys],
        new_connection: Callable[[], BlockingConnection],
        *,
        on_failure: Callable[[], None],
    ) -> None:
        """Wait for nothing yet.

        Args:
            commands: by which a waiter leaves the line.
            keys_of: spells the keys of a queue, or of a fanout exchange.
            new_connection: makes a connection for each thread that waits at the same time.
            on_failure: called before the error of such a connection leaves `wait`.
        """
        self._commands = commands
        self._keys_of = keys_of
        self._new_connection = new_connection
        self._on_failure = on_failure
        self._idle: list[BlockingConnection] = []
        self._lock = lock_of(self)
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def new_name(self) -> str:
        """Return a name for one who may have to wait."""
        return f"{self._prefix}-{next(self._numbers)}"

    def wait(self, queue: str, waiter: str, seconds: float) -> None:
        """Return when `waiter`, who stands in the queue's line, was woken, or after `seconds`.

        Raises as `CommandConnection.call` does.
        """
        with self._lock:
            blocking = self._idle.pop() if self._idle else self._new_connection()
        wakeup = self._keys_of(queue).waiting_publishers + b":" + waiter.encode()
        try:
            blocking.start("BZMPOP", max(seconds, 0.001), 1, wakeup, "MIN")
            blocking.finish()
        except ServerTimeout:
            # The server ends the call by its wall clock: after a step back that is late. The next try shows whether it lives.
            blocking.abort()
        except BaseException as error:
            # A call that was interrupted would answer to the next one who waits.
            blocking.abort()
            if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
                self._on_failure()
            raise
        finally:
            with self._lock:
                self._idle.append(blocking)

    def leave(self, queue: str, waiter: str, *, refused: bool) -> None:
        """Take `waiter` out of the queue's line, and count it among the `refused`.

        Never raises: with a lost connection the line forgets it by itself.
        """
        keys = self._keys_of(queue)
        with suppress(RedisError, OSError):
            self._commands.call(script("leave_wait_queue"), [keys.waiting_publishers, keys.meta], waiter, int(refused))

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for blocking in idle:
            blocking.close()
