"""A held connection for blocking commands: one goes out, and ends whenever the server says so."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.topology.held_connection import Argument, HeldConnection
from celery_redis_plus.topology.packing import pack_command


class BlockingWire(HeldConnection):
    """A connection on which at most one command waits."""

    _waiting = False

    def start(self, *arguments: Argument) -> None:
        """Send a blocking command; `finish` reads its reply.

        Raises:
            redis.exceptions.RedisError: as `translation.translate` names it.
        """
        self._check_process()
        with self.lock:
            connection = self._open()
            self._waiting = True
            try:
                connection.send_packed_command((pack_command(arguments),), check_health=False)
            except BaseException as error:
                self._break(error)

    def arrived(self) -> bool:
        """Tell, without waiting, whether `finish` has something to read: a reply, or the end of the connection."""
        connection = self._connection
        if connection is None:
            return True
        try:
            return bool(connection.can_read(timeout=0))
        except Exception:
            return True

    def finish(self) -> Any:
        """Return the reply to what `start` sent, waiting for it if need be. Raises as `start` does."""
        with self.lock:
            self._waiting = False
            if self._connection is None:
                raise ServerUnreachable(f"{self.purpose}: the connection was lost while a command waited")
            try:
                return self._read()
            except ResponseError as error:
                raise self._translated(error) from error
            except BaseException as error:
                self._break(error)

    def _expects(self) -> bool:
        return self._waiting

    def _opened(self) -> None:
        self._waiting = False
