"""Keeps what the broker refuses about one queue or exchange from the others that a maintenance task looks after."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import ResponseError

from celery_redis_plus.maintenance.runner import UNREACHABLE

logger = logging.getLogger(__name__)


class ContainedFailures:
    """Logs such refusals, each once while it stays the same."""

    def __init__(self, kind: str, work: str) -> None:
        """`kind` is `queue` or `exchange`; `work` is what is done with one, for the log, such as "its messages are freed"."""
        self._kind = kind
        self._work = work
        #: Queue or exchange -> why it was refused, as it was logged.
        self._known: dict[str, str] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Do the work on `name` alone: where the broker refuses it, the caller goes on.

        Raises:
            redis.exceptions.ConnectionError: or another one of `runner.UNREACHABLE`: nothing can be done with the others either.
        """
        try:
            yield
        except UNREACHABLE:
            raise
        except ResponseError as error:
            if self._known.get(name) != str(error):
                self._known[name] = str(error)
                logger.error(  # noqa: TRY400 - the server says it all
                    "%s %r: the broker refuses that %s (%s); trying again, the others go on",
                    self._kind, name, self._work, error, extra={self._kind: name},
                )  # fmt: skip
        else:
            self._known.pop(name, None)
