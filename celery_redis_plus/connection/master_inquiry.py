"""Puts the question for the master to Sentinels or nodes of a cluster, and keeps connections to them from one look to the next.

A new connection with TLS costs 24 ms of CPU, 20 of them for reading the system's authorities (redis-py makes a context for each).
An idle worker that opened one for each look spent 3 % of a core.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.master_question import NoAnswer
from celery_redis_plus.error_translation import translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.connection import Connection

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.master_question import Master, Question


class MasterInquiry:
    """Asks the servers of one address for masters. Thread-safe; a forked child keeps connections of its own."""

    def __init__(self, of: Address, connect: Callable[[Address, Question], Connection]) -> None:
        """Ask as the user of the address `of`, over connections that `connect` opens."""
        self._of = of
        self._connect = connect
        self._kept: dict[tuple[str, int], Connection] = {}
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        forks.on_fork_in_child(self)

    def ask(self, question: Question, host: str, port: int) -> Master:
        """Return what the server at `host` and `port` answers over a connection of its own.

        Raises:
            NoAnswer: it names none that could be used.
            redis.exceptions.RedisError, OSError: the connection failed; as this package has it.
        """
        connection = self._open(question, host, port)
        try:
            return question.read_answer(self._fetch(connection, question, host, port), host)
        finally:
            _close(connection)

    def fetch_again(self, question: Question, host: str, port: int) -> Any:
        """Return what it says over a connection that stays open for the next time, for `Question.read`. Raises as `ask` does."""
        connection = self._kept.pop((host, port), None)
        if connection is not None:
            # The server may have closed it since; then a new connection decides.
            with suppress(RedisError, OSError):
                return self._fetch_and_keep(connection, question, host, port)
        return self._fetch_and_keep(self._open(question, host, port), question, host, port)

    def join(self, user: object) -> None:
        """Keep connections from now on: `user` has one to the master."""
        self._users.add(user)

    def leave(self, user: object) -> None:
        """Close them where `user` was the last one that had a connection to the master."""
        self._users.discard(user)
        self._close_unused()

    def forked(self) -> None:
        """Let go of the parent's connections. redis-py closes the descriptors, and sends nothing in another process."""
        self._users = weakref.WeakSet()
        self._close_unused()

    def _open(self, question: Question, host: str, port: int) -> Connection:
        return self._connect(question.address(self._of, host, port), question)

    def _fetch_and_keep(self, connection: Connection, question: Question, host: str, port: int) -> Any:
        try:
            fetched = self._fetch(connection, question, host, port)
        except NoAnswer:
            self._keep(connection, host, port)
            raise
        except BaseException:
            _close(connection)
            raise
        self._keep(connection, host, port)
        return fetched

    def _keep(self, connection: Connection, host: str, port: int) -> None:
        self._kept[host, port] = connection
        self._close_unused()

    def _fetch(self, connection: Connection, question: Question, host: str, port: int) -> Any:
        try:
            return question.fetch(connection, host)
        except NoAnswer:
            raise
        except Exception as exc:
            raise translate(exc, question.address(self._of, host, port)) from exc

    def _close_unused(self) -> None:
        while self._kept and not self._users:
            with suppress(KeyError):
                _close(self._kept.popitem()[1])


def _close(connection: Connection) -> None:
    with suppress(Exception):
        connection.disconnect()
