"""Puts back what lost processes had: their messages, their places among the consumers of queues, and their other roles."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus.broker.consumers.failures import log_deaths
from celery_redis_plus.broker.consumers.processes import FIRST_PAGE
from celery_redis_plus.maintenance.maintenance_task import Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.processes import Processes, ProcessRecord

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lost:
    """A lost process whose messages are put back."""

    name: str
    #: Its record, as it is stored.
    text: str
    record: ProcessRecord
    #: Those that are left.
    queues: list[str]
    exchanges: list[str]
    page: bytes = FIRST_PAGE
    #: Messages put back, by queue.
    recovered: Counter[str] = field(default_factory=Counter)
    consumers: int = 0


@dataclass(frozen=True, slots=True)
class LostRoles:
    """Ends what a lost process was, beside a consumer.

    Attributes:
        subscriber: told an exchange, the process and a page: publishers wait no longer for its subscribers there. Returns the
        next page; empty at the end.
        owner: told an exclusive queue and its owner: the queue goes.
    """

    subscriber: Callable[[str, str, bytes], bytes] = lambda *_: b""
    owner: Callable[[str, bytes], object] = lambda *_: None


class ProcessRecovery:
    """The recovery of one lost process after the other, by pages."""

    def __init__(self, processes: Processes, roles: LostRoles, remove: Callable[[str, str], object]) -> None:
        """Recover over the connection of `processes`, and by `roles`; `remove` is given a recovered process and its record."""
        self._processes = processes
        self._roles = roles
        self._remove = remove
        self._lost: list[_Lost] = []
        #: Messages that this process has put back.
        self.recovered = 0

    def recover(self, name: str, text: str, record: ProcessRecord) -> None:
        """Recover the process `name` with the next runs, whose `record` is stored as `text`."""
        self._lost.append(_Lost(name, text, record, list(record.queues), list(record.exchanges)))

    def includes(self, name: str) -> bool:
        """Return whether a process is being recovered here."""
        return any(lost.name == name for lost in self._lost)

    def run(self) -> bool:
        """Put back messages for one slice; return whether nothing is left to do. Raises as `CommandConnection.call` does."""
        slice_ = Slice()
        while self._lost and not slice_.over:
            lost = self._lost[0]
            if lost.exchanges:
                # First: publishers wait for its subscribers.
                self._suspect_page(lost)
                continue
            if lost.queues:
                self._recover_in_queue(lost)
                continue
            self._remove(lost.name, lost.text)
            self._lost.pop(0)
            _tell_recovered(lost)
        return not self._lost

    def _suspect_page(self, lost: _Lost) -> None:
        try:
            lost.page = self._roles.subscriber(lost.exchanges[0], lost.name, lost.page)
        except NoPermissionError as error:
            logger.debug("the subscribers of a lost process are left to their timeout: %s", error)
            lost.page = b""
        if not lost.page:
            lost.exchanges.pop(0)
            lost.page = FIRST_PAGE

    def _recover_in_queue(self, lost: _Lost) -> None:
        queue = lost.queues[0]
        try:
            self._recover_page(lost, queue)
            if not lost.page:
                # The messages are back: the next active consumer begins with them.
                removed = self._processes.remove_consumers(queue, lost.record.sessions)
                lost.consumers += removed.count
                if removed.owner:
                    self._roles.owner(queue, removed.owner)
        except ResponseError as error:
            if not isinstance(error, NoPermissionError) and "WRONGTYPE" not in str(error):
                raise
            logger.error(  # noqa: TRY400
                "queue %r: the messages of a lost process are left to the visibility timeout: %s", queue, error,
                extra={"queue": queue},
            )  # fmt: skip
            lost.page = FIRST_PAGE
        if not lost.page:
            lost.queues.pop(0)

    def _recover_page(self, lost: _Lost, queue: str) -> None:
        page = self._processes.recover(queue, lost.record.sessions, lost.page)
        lost.recovered[queue] += page.recovered
        self.recovered += page.recovered
        lost.page = page.next_page
        if page.died:
            log_deaths(queue, page.died, page.deaths)


def _tell_recovered(lost: _Lost) -> None:
    record = lost.record
    total = lost.recovered.total()
    queues = ", ".join(f"{queue!r}: {count}" for queue, count in sorted((+lost.recovered).items()))
    # A process that has given everything back need not remove its record.
    level = logging.WARNING if total else logging.INFO if lost.consumers else logging.DEBUG
    logger.log(
        level,
        "process %d on %s is lost: it had no connection for %g s (connection_lost_grace). %d message(s) are put back%s, %d "
        "consumer(s) are removed",
        record.pid, record.host, record.grace_s, total, f" ({queues})" if queues else "", lost.consumers,
    )  # fmt: skip
