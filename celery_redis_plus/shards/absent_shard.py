"""A shard that cannot be reached: a thread of its own asks it until it answers, so that the events of the others do not wait."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from celery_redis_plus.errors import (
    ReadOnlyReplica,
    ServerLoading,
    ServerTimeout,
    ServerUnavailable,
    ServerUnreachable,
    SlotUnavailable,
)

if TYPE_CHECKING:
    from celery_redis_plus.event_log.stream import EventLog

logger = logging.getLogger(__name__)

#: What a server has that restarts, fails over or is out of reach for a while.
PASSING = (ServerUnreachable, ServerTimeout, ServerLoading, ServerUnavailable, ReadOnlyReplica, SlotUnavailable)
#: Seconds between two questions to a shard that could not be reached.
PAUSE_S = 1.0


class AbsentShard:
    """Asks a shard over a connection of its own until it answers, or until `give_up`.

    Args:
        log: its event log, which tells where the shard is; its connection is not used.
        error: why it could not be reached.
    """

    def __init__(self, log: EventLog, error: Exception) -> None:
        self.error = error
        self._back = threading.Event()
        given_up = threading.Event()
        # The thread does not keep this object, so it ends as well where nothing was closed.
        self.give_up = weakref.finalize(self, given_up.set)
        arguments = (log.another(), self._back, given_up)
        threading.Thread(target=_ask, args=arguments, name="celery-redis-plus absent shard", daemon=True).start()

    @property
    def is_back(self) -> bool:
        """Whether it has answered."""
        return self._back.is_set()


def _ask(log: EventLog, back: threading.Event, given_up: threading.Event) -> None:
    with log:
        while not given_up.wait(PAUSE_S):
            try:
                log.ping()
            except PASSING:
                continue
            except Exception as error:  # noqa: BLE001 - an answer, too: the reader of its events meets the error
                logger.debug("an absent shard answers with an error: %s", error)
            back.set()
            return
