"""Keeps a fault where it is: what the keys of a queue or exchange hold (another type, a text for a number) ends nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus.broker.line_interval import LineInterval
from celery_redis_plus.connection.refused_calls import describe_refusal
from celery_redis_plus.error_translation import concerns_keys, translate
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument

#: Seconds between two lines in the log about a queue or an exchange.
LOG_INTERVAL_S = 60.0


def of_our_keys(replies: Iterable[Any]) -> list[Any]:
    """Return the replies of a pipeline, with None for an error that is about what a key holds. Raises another one."""
    found = []
    for reply in replies:
        if isinstance(reply, Exception) and not concerns_keys(reply):
            raise reply
        found.append(None if isinstance(reply, Exception) else reply)
    return found


class KeyFailures:
    """Takes the errors that are about the keys of one queue, or one exchange, and logs them."""

    def __init__(self, logger: logging.Logger, what: str, *, kind: str = "queue") -> None:
        """Log to `logger` that a queue `what` (`cannot be claimed from`); `kind` is `exchange` where it is one."""
        self._logger = logger
        self._what = what
        self._kind = kind
        self._lines = LineInterval(LOG_INTERVAL_S)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Do something with one queue or exchange; `contain` what it raises."""
        try:
            yield
        except (ResponseError, InvalidArgument) as error:
            self.contain(error, name)

    def contain(self, error: Exception, name: str) -> None:
        """Log an error, in the first case and once a minute; raise it where it is not about what the keys hold."""
        if not concerns_keys(error):
            raise error
        if times := self._lines.count(name):
            self._log(name, error, times)

    def _log(self, name: str, error: Exception, times: int) -> None:
        self._logger.error(
            "%s %r %s (%s), others go on; that happened %d time(s) since the last such line",
            self._kind, name, self._what, error, times, extra={self._kind: name},
        )  # fmt: skip


class QueueFailures(KeyFailures):
    """Takes such errors of queues also as the texts that a script has caught."""

    def __init__(self, commands: CommandConnection, logger: logging.Logger, what: str) -> None:
        """Log as `KeyFailures`, for calls over `commands`."""
        super().__init__(logger, what)
        self._commands = commands

    def error_of(self, text: str, call: Sequence[Argument]) -> Exception:
        """Return the error for the `text` that a script has caught, or that stood among other replies, to `call`."""
        error = ResponseError(text)
        return translate(error, self._commands.connector.address, describe_refusal(error, call))

    def contain_text(self, text: str, queue: str, call: Sequence[Argument]) -> None:
        """Do what `contain` does, with what `error_of` takes."""
        if not concerns_keys(translate(ResponseError(text), self._commands.connector.address)):
            raise self.error_of(text, call)
        self.log(text, queue, call)

    def log(self, text: str, queue: str, call: Sequence[Argument]) -> None:
        """Log such an error whatever it is about, in the first case and once a minute."""
        if times := self._lines.count(queue):
            self._log(queue, self.error_of(text, call), times)
