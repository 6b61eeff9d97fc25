"""Moves dead messages on to their queues' dead-letter exchanges, a page of a queue at a time.

The scripts cannot: where a message is routed to is known to clients only. Until a process has moved it, a message stands in
the set `dlx_outbox`; the move is one step on the server, so that any number of processes may try it.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.dead_letters.elsewhere import NOWHERE_ELSE
from celery_redis_plus.broker.dead_letters.store import ALREADY_GONE, NO_TARGET, DeadLetter, DeadLetters, Move
from celery_redis_plus.broker.dead_letters.x_death import is_cycle
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice
from celery_redis_plus.stored_message import UnreadableMessageError, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_redis_plus.broker.dead_letters.elsewhere import Elsewhere
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.exchanges.routing import RoutingTable
    from celery_redis_plus.broker.queues.queues import Queues

#: Seconds until another broker that could not be reached is tried again.
RETRY_S = 1.0

logger = logging.getLogger(__name__)


class _OtherBrokerError(Exception):
    """Another broker cannot be reached, so it is unknown where a message goes."""


class DeadLetterForwarder(MaintenanceTask):
    """The maintenance task that empties the sets of dying messages. A sweep tells which queues have some."""

    def __init__(
        self, letters: DeadLetters, queues: Queues, bindings: Bindings,
        elsewhere: Callable[[], Elsewhere] = lambda: NOWHERE_ELSE,
    ) -> None:  # fmt: skip
        """Use the rooms of the maintenance connection; `elsewhere` returns what reaches queues of other brokers."""
        self._elsewhere = elsewhere
        #: Another broker could not be reached: when to try again, on `clock`, in seconds.
        self._retry_at = 0.0
        self._letters = letters
        self._queues = queues
        self._bindings = bindings
        #: Queues with dying messages, in turn.
        self._waiting: dict[str, None] = {}
        self._failures = KeyFailures(logger, "has dead messages that cannot be moved on")

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity where nothing waits."""
        return self._retry_at if self._waiting else float("inf")

    def forward_soon(self, queue: str) -> None:
        """Forward what waits in `queue`, soon."""
        self._waiting[queue] = None

    def run(self) -> None:
        """Forward pages of one queue after the other until the slice is over. Raises as `CommandConnection.call` does."""
        slice_ = Slice()
        while self._waiting and not slice_.over and self._retry_at <= clock.now_s():
            queue = next(iter(self._waiting))
            del self._waiting[queue]
            more = True
            try:
                more = self._forward_page(queue)
            except (ResponseError, InvalidArgument) as error:
                self._failures.contain(error, queue)
                # The next sweep tells of it again.
                more = False
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
        stranded: dict[str, BaseException | None] = {}
        forwards = self._moves_of(page, exchange, routing_key, stranded)
        for forward, taken in self._forward_all(forwards):
            if isinstance(taken, Exception):
                stranded[forward.letter.tag] = taken
            elif taken == NO_TARGET and not self._revive(forward, stranded):
                stranded.setdefault(forward.letter.tag)
        if stranded:
            self._keep(queue, exchange, stranded)
        return True

    def _moves_of(
        self, page: Sequence[DeadLetter], exchange: str | None, routing_key: str | None, stranded: dict[str, BaseException | None]
    ) -> list[Move]:
        """Return the messages that go on; those that do not are noted in `stranded`, with what keeps them."""
        tables: dict[str, list[RoutingTable]] = {}
        forwards: list[Move] = []
        for letter in page:
            key = letter.routing_key if routing_key is None else routing_key
            try:
                targets = [] if exchange is None else self._targets(exchange, key, letter, tables)
                move = _move_of(letter, targets, (exchange or "", key))
            except UnreadableMessageError as error:
                stranded[letter.tag] = error.error
                continue
            except _OtherBrokerError as error:
                self._wait_for_others(error)
                continue
            if move is None:
                stranded[letter.tag] = None
            else:
                forwards.append(move)
        return forwards

    def _forward_all(self, forwards: list[Move]) -> list[tuple[Move, int | Exception]]:
        """Forward messages; return what became of each. Those for a broker that cannot be reached wait."""
        elsewhere = self._elsewhere()
        away = [one for one in forwards if elsewhere.concerns(one.targets)]
        here = [one for one in forwards if one not in away]
        done: list[tuple[Move, int | Exception]] = list(zip(here, self._letters.forward_all(here), strict=True)) if here else []
        for one in away:
            try:
                taken = elsewhere.move(one, self._letters.outbox(one.letter.queue), "forwarded")
            except (RedisError, OSError) as error:
                if isinstance(error, ResponseError) and concerns_keys(error):
                    done.append((one, error))
                else:
                    self._wait_for_others(error)
                continue
            done.append((one, taken))
        return done

    def _wait_for_others(self, error: Exception) -> None:
        """Forward nothing for a moment: heartbeats of this broker must not wait for another one."""
        self._retry_at = clock.now_s() + RETRY_S
        logger.warning("dead messages wait in their queues: %s", error)

    def _revive(self, forward: Move, stranded: dict[str, BaseException | None]) -> bool:
        """Forward a message of which no target has a record; return whether one takes it, or it is gone.

        As for a publisher: a queue that was never declared is made, one that was deleted stays so. What a target refuses is
        noted in `stranded`.
        """
        here = [name for name in forward.targets if not self._elsewhere().concerns([name])]
        try:
            revived = [name for name in here if self._queues.revive(name)]
        except (ResponseError, InvalidArgument) as error:
            if not concerns_keys(error):
                raise
            stranded[forward.letter.tag] = error
            return False
        taken = self._letters.forward_all([forward.to(revived)])[0] if revived else NO_TARGET
        if isinstance(taken, Exception):
            stranded[forward.letter.tag] = taken
            return False
        return taken > 0 or taken == ALREADY_GONE

    def _targets(self, exchange: str, routing_key: str, letter: DeadLetter, tables: dict[str, list[RoutingTable]]) -> list[str]:
        """Return where an exchange routes a message; `tables` keeps the bindings as they were read for this page.

        Raises UnreadableMessageError where the message cannot be routed, and _OtherBrokerError where another broker is away.
        """
        if not exchange:
            return [routing_key] if routing_key else []
        # One by one: each is read again before the next one is asked for.
        try:
            for name in chain((exchange,), self._bindings.alternates(exchange)):
                if name not in tables:
                    tables[name] = [self._bindings.refresh(name), *self._refresh_elsewhere(name)]
                targets = list(chain.from_iterable(table.route(routing_key, letter.headers) for table in tables[name]))
                if targets:
                    return list(dict.fromkeys(targets))
        except (RedisError, OSError, _OtherBrokerError):
            raise
        except Exception as error:
            # The letter's headers, or an exchange's record.
            raise unreadable(error) from error
        return []

    def _refresh_elsewhere(self, exchange: str) -> Sequence[RoutingTable]:
        try:
            return self._elsewhere().refresh(exchange)
        except (RedisError, OSError) as error:
            raise _OtherBrokerError(str(error)) from error

    def _keep(self, queue: str, exchange: str | None, stranded: Mapping[str, BaseException | None]) -> None:
        kept, discarded = self._letters.keep(queue, stranded)
        if kept:
            logger.warning(
                "the dead-letter exchange %r of queue %r takes %d dead message(s) nowhere (unbound, no queue, circle, damaged, "
                "refused by the queue): "
                "they are in the queue's own dead letters",
                exchange, queue, kept, extra={"exchange": exchange, "queue": queue},
            )  # fmt: skip
        if discarded:
            logger.warning(
                "the dead-letter exchange %r of the transient queue %r takes %d dead message(s) nowhere: they are discarded",
                exchange, queue, discarded, extra={"exchange": exchange, "queue": queue},
            )  # fmt: skip


def _move_of(letter: DeadLetter, targets: Sequence[str], routing: tuple[str, str]) -> Move | None:
    """Return a dying message on its way to those of the queues that it does not come round to; None where there are none.

    Raises UnreadableMessageError where it cannot be written again, with its death in its headers.
    """
    try:
        targets = [name for name in targets if not is_cycle(letter.death_headers, name)]
    except Exception as error:
        raise unreadable(error) from error
    return Move.of(letter, targets, routing) if targets else None
