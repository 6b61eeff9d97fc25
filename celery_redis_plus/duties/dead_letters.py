"""Moves dead messages on to their queues' dead-letter exchanges.

The scripts cannot: where a message is routed to is known to clients only. Until a process has moved it, a message stands in
the set `dying`; the move is one step on the server, so that any number of processes may try it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters import GONE, NO_TARGET, DeadLetter, DeadLetters
from celery_redis_plus.broker.deaths import is_cycle

if TYPE_CHECKING:
    from celery_redis_plus.broker.bindings import Bindings
    from celery_redis_plus.broker.queues import Queues

logger = logging.getLogger(__name__)


class Undertaker:
    """Sees dead messages off to where their queue wants them."""

    def __init__(self, letters: DeadLetters, queues: Queues, bindings: Bindings) -> None:
        """Use the rooms of the duties' wire."""
        self._letters = letters
        self._queues = queues
        self._bindings = bindings

    def see_off(self, queue: str) -> None:
        """Move everything that waits in `queue` to go to its dead-letter exchange. Raises as `Wire.run` does."""
        while page := self._letters.dying(queue):
            # Read for each page: the queue may have been declared again, with another exchange.
            known = self._queues.read(queue)
            exchange = None if known is None else known.arguments.dead_letter_exchange
            routing_key = None if known is None else known.arguments.dead_letter_routing_key
            stranded = []
            for letter in page:
                key = letter.routing_key if routing_key is None else routing_key
                if exchange is None or not self._forward(letter, exchange, key):
                    stranded.append(letter.tag)
            if stranded:
                self._keep(queue, exchange, stranded)

    def _forward(self, letter: DeadLetter, exchange: str, routing_key: str) -> bool:
        """Return False where nobody takes the message, or could read it."""
        if letter.damaged:
            return False
        headers = letter.death_headers
        targets = [name for name in self._targets(exchange, routing_key, letter) if not is_cycle(headers, name)]
        if not targets:
            return False
        taken = self._letters.forward(letter, targets, (exchange, routing_key))
        if taken == NO_TARGET:
            # As for a publisher: a queue that was never declared is made, one that was deleted stays so.
            revived = [name for name in targets if self._queues.revive(name)]
            taken = self._letters.forward(letter, revived, (exchange, routing_key)) if revived else NO_TARGET
        return taken > 0 or taken == GONE

    def _targets(self, exchange: str, routing_key: str, letter: DeadLetter) -> list[str]:
        if not exchange:
            return [routing_key] if routing_key else []
        for name in (exchange, *self._bindings.alternates(exchange)):
            targets = list(self._bindings.refresh(name).route(routing_key, letter.headers))
            if targets:
                return targets
        return []

    def _keep(self, queue: str, exchange: str | None, tags: list[str]) -> None:
        kept, dropped = self._letters.keep(queue, tags)
        if kept:
            logger.warning(
                "the dead-letter exchange %r of queue %r takes %d dead message(s) nowhere (unbound, no queue, circle, damaged): "
                "they are in the queue's own dead letters",
                exchange, queue, kept,
            )  # fmt: skip
        if dropped:
            logger.warning(
                "the dead-letter exchange %r of the transient queue %r takes %d dead message(s) nowhere: they are dropped",
                exchange, queue, dropped,
            )  # fmt: skip
