"""A connection for blocking commands: one at a time; the server decides when it ends."""

from __future__ import annotations

import time
from math import inf
from typing import Any

from redis.exceptions import ResponseError

from celery_redis_plus.connection.persistent_connection import PING, Argument, PersistentConnection
from celery_redis_plus.connection.protocol import pack_command, send
from celery_redis_plus.errors import ServerTimeout, ServerUnreachable

#: Seconds by which the server may be late with its own timeout (up to 100 ms, seen by its cron) and the network besides.
REPLY_GRACE_S = 5.0

#: An operator ends the call with an error instead of a timeout: https://redis.io/docs/latest/commands/client-unblock/
UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"


class BlockingConnection(PersistentConnection):
    """A connection on which at most one command waits."""

    _waiting = False
    _command: tuple[Argument, ...] = ()
    _patience_s = inf
    _overdue_at = inf

    def start(self, *arguments: Argument, lasts_s: float = inf) -> None:
        """Send a blocking command; `finish` reads its reply.

        Args:
            arguments: the command.
            lasts_s: seconds after which the server ends it by itself, for `arrived` to go by.

        Raises:
            redis.exceptions.RedisError: as `translation.translate` names it.
            RuntimeError: another command waits, whose reply would be taken for the one of this command.
        """
        self._check_process()
        with self.lock:
            connection = self._open()
            if self._waiting:
                raise RuntimeError(f"{self.purpose}: {self._command[0]!r} waits already")
            self._waiting = True
            self._command = arguments
            self._patience_s = lasts_s + REPLY_GRACE_S
            self._overdue_at = time.monotonic() + self._patience_s
            try:
                send(connection, pack_command(arguments))
            except BaseException as error:
                self._fail_and_raise(error)

    def arrived(self) -> bool:
        """Tell, without waiting, whether `finish` has something to read: a reply, or the end of the connection.

        Raises:
            ServerTimeout: the server did not answer its own timeout: the peer is gone without a word.
        """
        # Before the look: whatever held this thread up since, an answer that is there now was in time.
        overdue = self.overdue
        if self._connection is None or self._arrived():
            return True
        if overdue:
            error = ServerTimeout(
                f"{self.purpose}: no answer to a blocking call for {self._patience_s:.0f} s; the connection is dead"
            )
            self.abort(error)
            raise error
        return False

    @property
    def overdue(self) -> bool:
        """Whether the server should have ended the call by now."""
        return self._waiting and time.monotonic() > self._overdue_at

    def postpone(self) -> None:
        """Give the server `REPLY_GRACE_S` from now on to end the call."""
        self._patience_s += REPLY_GRACE_S
        self._overdue_at = time.monotonic() + REPLY_GRACE_S

    def keep_alive(self, idle_s: float) -> None:
        """Send a PING where nothing was sent for `idle_s` seconds, and no command waits. Raises as `start` does."""
        with self.lock:
            if not self.connected or self._waiting or self.idle_s < idle_s:
                return
            connection = self._open()
            try:
                send(connection, PING)
                self._read()
            except BaseException as error:
                self._fail_and_raise(error)

    def finish(self) -> Any:
        """Return the reply to what `start` sent, waiting for it if need be; None after a timeout. Raises as `start` does."""
        with self.lock:
            self._waiting = False
            if self._connection is None:
                raise ServerUnreachable(f"{self.purpose}: the connection was lost while a command waited")
            try:
                return self._read()
            except ResponseError as error:
                if UNBLOCKED in str(error):
                    return None
                self._refuse(error, self._command)
            except BaseException as error:
                self._fail_and_raise(error)

    @property
    def has_pending(self) -> bool:
        """Whether a command waits."""
        return self._waiting

    def _opened(self) -> None:
        self._waiting = False
