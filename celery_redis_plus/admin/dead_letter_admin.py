"""The dead letters of a broker for its operator: some of a queue, and their way back to work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from celery_redis_plus.admin.part import AdminPart
from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter, DeadLetterSearch
from celery_redis_plus.broker.dead_letters.store import NO_TARGET, DeadLetter, DeadLetters, Move, no_target, replay_of
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.errors import InvalidArgument, QueueNotFound

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.bindings import Bindings

#: Why one dead letter of many stays where it is.
BrokerRefusal = InvalidArgument | QueueNotFound


class DeadLetterAdmin(AdminPart):
    """The part of `BrokerAdmin` that is about dead letters; that class has what is declared here."""

    _bindings: Bindings
    #: Lists, replays and deletes dead letters.
    dead_letters: DeadLetters

    @property
    def dead_letter_max(self) -> int:
        """How many dead letters a queue keeps, by the options that this connection has."""
        return self._options.dead_letter_max

    def search_dead_letters(self, queue: str, wanted: DeadLetterFilter, *, newest: bool = False) -> DeadLetterSearch:
        """Return the dead letters that `queue` has now and `wanted` selects; with `newest` the last one first."""
        self.check_queue(queue)
        return DeadLetterSearch(self._commands, self._keys, self.dead_letters, queue, wanted, newest=newest)

    def replay_page(self, letters: Sequence[DeadLetter], to: str | None = None) -> list[bool | BrokerRefusal]:
        """Replay dead letters in one write; return for each what `replay` returns or raises."""
        queues = {letter.queue for letter in letters}
        with self.audit.action("replay", queues.pop() if len(queues) == 1 else None, to=to) as action:
            found = self._replay_page(letters, to)
            action.count = sum(one is True for one in found)
        return found

    def _replay_page(self, letters: Sequence[DeadLetter], to: str | None) -> list[bool | BrokerRefusal]:
        outcomes: dict[str, bool | BrokerRefusal] = {}
        replays: list[Move] = []
        for letter in letters:
            try:
                replays.append(replay_of(letter, self._targets(letter, to)))
            except (InvalidArgument, QueueNotFound) as error:
                outcomes[letter.tag] = error
        for one, taken in zip(replays, self.dead_letters.replay_all(replays), strict=True):
            missing = taken == NO_TARGET
            outcomes[one.letter.tag] = QueueNotFound(no_target(one.letter, one.targets)) if missing else taken > 0
        return [outcomes[letter.tag] for letter in letters]

    def replay(self, letter: DeadLetter, to: str | None = None) -> bool:
        """Put a dead letter back to work: to its queue, or to the queue `to`; return False where it is gone by now.

        A message that no queue took is routed again, by the exchange and the routing key that it was published with.

        Raises:
            InvalidArgument: `to` is the reserved queue of undelivered messages; or the message was for one subscriber of an
                exchange, and `to` is missing.
            QueueNotFound: no such queue, or still none that takes it; the dead letter stays.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        with self.audit.action("replay", letter.queue, id=letter.tag, to=to) as action:
            replayed = self.dead_letters.replay(letter, self._targets(letter, to))
            action.count = int(replayed)
        return replayed

    def _targets(self, letter: DeadLetter, to: str | None) -> list[str]:
        back = self.routed if letter.queue == UNDELIVERED else lambda _: [letter.queue]
        return back(letter) if to is None else [to]

    def routed(self, letter: DeadLetter) -> list[str]:
        """Return where a message that no queue took is routed to now. Raises as `replay` does."""
        if not letter.exchange:
            return [letter.routing_key]
        record = self._bindings.record(letter.exchange)
        if record is not None and record.type == "fanout":
            raise InvalidArgument(
                f"the dead letter {letter.tag} was broadcast over {letter.exchange!r}: name the queue that shall get it (--to)"
            )
        for name in chain((letter.exchange,), self._bindings.alternates(letter.exchange)):
            targets = list(self._bindings.refresh(name).route(letter.routing_key, letter.headers))
            if targets:
                return targets
        raise QueueNotFound(
            f"still no queue takes messages to exchange {letter.exchange!r} with routing key {letter.routing_key!r}: the dead "
            f"letter {letter.tag} stays where it is; bind a queue, or name one (--to QUEUE)"
        )
