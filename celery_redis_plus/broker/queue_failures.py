"""Keeps a fault in its queue: what the keys of one queue hold (another type, a text for a number) fails nothing else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_redis_plus.broker.line_interval import LineInterval
from celery_redis_plus.error_translation import concerns_keys, translate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument

#: Seconds between two lines in the log about a queue.
LOG_INTERVAL_S = 60.0


class QueueFailures:
    """Takes the errors that are about the keys of one queue, and logs them."""

    def __init__(self, commands: CommandConnection, logger: logging.Logger, what: str) -> None:
        """Log to `logger` that a queue `what` (`cannot be claimed from`), for calls over `commands`."""
        self._commands = commands
        self._logger = logger
        self._what = what
        self._lines = LineInterval(LOG_INTERVAL_S)

    def error_of(self, text: str, call: Sequence[Argument]) -> Exception:
        """Return the error for the `text` that a script has caught, or that stood among other replies, to `call`."""
        error = ResponseError(text)
        return translate(error, self._commands.connector.address, self._commands.refused_keys.describe(error, call))

    def contain(self, error: ResponseError, queue: str) -> None:
        """Log an error, in the first case and once a minute; raise it where it is not about what the keys of the queue hold."""
        if not concerns_keys(error):
            raise error
        if times := self._lines.add(queue):
            self._log(queue, error, times)

    def contain_text(self, text: str, queue: str, call: Sequence[Argument]) -> None:
        """Do what `contain` does, with what `error_of` takes."""
        if not concerns_keys(translate(ResponseError(text), self._commands.connector.address)):
            raise self.error_of(text, call)
        self.log(text, queue, call)

    def log(self, text: str, queue: str, call: Sequence[Argument]) -> None:
        """Log such an error whatever it is about, in the first case and once a minute."""
        if times := self._lines.add(queue):
            self._log(queue, self.error_of(text, call), times)

    def _log(self, queue: str, error: Exception, times: int) -> None:
        self._logger.error(
            "queue %r %s (%s), others go on; that happened %d time(s) since the last such line",
            queue, self._what, error, times, extra={"queue": queue},
        )  # fmt: skip
