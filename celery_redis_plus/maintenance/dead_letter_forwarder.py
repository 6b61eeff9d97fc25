"""Moves dead messages on to their queues' dead-letter exchanges, a page of a queue at a time.

The scripts cannot: where a message is routed to is known to clients only. Until a process has moved it, a message stands in
the set `dlx_outbox`; the move is one step on the server, so that any number of processes may try it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.store import ALREADY_GONE, NO_TARGET, DeadLetter, DeadLetters, Forward
from celery_redis_plus.broker.dead_letters.x_death import is_cycle
from celery_redis_plus.maintenance.time_slices import Slice

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.exchanges.routing import RoutingTable
    from celery_redis_plus.broker.queues.queues import Queues

logger = logging.getLogger(__name__)


class DeadLetterForwarder:
    """The maintenance task that empties the sets of dying messages. A sweep tells which queues have some."""

    def __init__(self, letters: DeadLetters, queues: Queues, bindings: Bindings) -> None:
        """Use the rooms of the maintenance connection."""
        self._letters = letters
        self._queues = queues
        self._bindings = bindings
        #: Queues with dying messages, in turn.
        self._waiting: dict[str, None] = {}

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity where nothing waits."""
        return 0.0 if self._waiting else float("inf")

    def add(self, queue: str) -> None:
        """Forward what waits in `queue`, soon."""
        self._waiting[queue] = None

    def run(self) -> None:
        """Forward pages of one queue after the other until the slice is over. Raises as `CommandConnection.call` does."""
        slice_ = Slice()
        while self._waiting and not slice_.over:
            queue = next(iter(self._waiting))
            del self._waiting[queue]
            more = True
            try:
                more = self._forward_page(queue)
            finally:
                if more:
                    # At the end of the line, also where the server refuses it: others are not kept waiting.
                    self._waiting[queue] = None

    def _forward_page(self, queue: str) -> bool:
        """Forward some of the messages that wait in a queue; return whether there may be more."""
        page = self._letters.awaiting_dlx(queue)
        if not page:
            return False
        # Read for each page: the queue may have been declared again, with another exchange.
        known = self._queues.read(queue)
        exchange = None if known is None else known.arguments.dead_letter_exchange
        routing_key = None if known is None else known.arguments.dead_letter_routing_key
        tables: dict[str, RoutingTable] = {}
        forwards, stranded = [], []
        for letter in page:
            key = letter.routing_key if routing_key is None else routing_key
            targets = [] if exchange is None else self._targets(exchange, key, letter, tables)
            targets = [name for name in targets if not is_cycle(letter.death_headers, name)]
            if targets:
                forwards.append(Forward(letter, targets, (exchange or "", key)))
            else:
                stranded.append(letter.tag)
        for forward, taken in zip(forwards, self._letters.forward_all(forwards), strict=True):
            if taken == NO_TARGET and not self._revive(forward):
                stranded.append(forward.letter.tag)
        if stranded:
            self._keep(queue, exchange, stranded)
        return True

    def _revive(self, forward: Forward) -> bool:
        """Forward a message of which no target has a record; return whether one takes it, or it is gone.

        As for a publisher: a queue that was never declared is made, one that was deleted stays so.
        """
        revived = [name for name in forward.targets if self._queues.revive(name)]
        taken = self._letters.forward_all([replace(forward, targets=revived)])[0] if revived else NO_TARGET
        return taken > 0 or taken == ALREADY_GONE

    def _targets(self, exchange: str, routing_key: str, letter: DeadLetter, tables: dict[str, RoutingTable]) -> list[str]:
        """Return where an exchange routes a message; `tables` keeps the bindings as they were read for this page."""
        if not exchange:
            return [routing_key] if routing_key else []
        for name in (exchange, *self._bindings.alternates(exchange)):
            if name not in tables:
                tables[name] = self._bindings.refresh(name)
            targets = list(tables[name].route(routing_key, letter.headers))
            if targets:
                return targets
        return []

    def _keep(self, queue: str, exchange: str | None, tags: list[str]) -> None:
        kept, discarded = self._letters.keep(queue, tags)
        if kept:
            logger.warning(
                "the dead-letter exchange %r of queue %r takes %d dead message(s) nowhere (unbound, no queue, circle, damaged): "
                "they are in the queue's own dead letters",
                exchange, queue, kept, extra={"exchange": exchange, "queue": queue},
            )  # fmt: skip
        if discarded:
            logger.warning(
                "the dead-letter exchange %r of the transient queue %r takes %d dead message(s) nowhere: they are discarded",
                exchange, queue, discarded, extra={"exchange": exchange, "queue": queue},
            )  # fmt: skip
