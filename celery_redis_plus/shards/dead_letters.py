"""Moves dead messages into queues of other shards, which no script reaches together: each arrives once, whatever dies in between.

First the message is stored in the other shard, under an id that a second call finds again. Then it is removed here, and then the
id may be forgotten there. A process that slept in between could store a message that others have moved long ago: so a call that
comes later than a minute after the message was seen here is refused, and ids outlive their move by ten. See
docs/design/0022-shards.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.store import ALREADY_GONE, NO_TARGET, DeadLetters, Move
from celery_redis_plus.broker.publishing.publisher import stage
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.events import pack_text
from celery_redis_plus.scripts import script
from celery_redis_plus.shards.place import Place, connect
from celery_redis_plus.shards.replicated import call_replicated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redis_plus.broker.exchanges.routing import RoutingTable
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.shards.shard_state import ShardStates

#: Milliseconds from the look at the source until which a message may be stored; and for which ids outlive their move.
STORE_WITHIN_MS, KEPT_MS = 60_000, 600_000


class Neighbours:
    """The shards beside one of them; connected to when they are needed, but for those that are down."""

    def __init__(self, states: ShardStates) -> None:
        """Connect to none yet."""
        self._states = states
        self._open: dict[int, Place] = {}

    def __call__(self, number: int) -> Place:
        """Return a shard by its number. Raises ShardUnreachable where it is down."""
        state = self._states[number]
        state.check()
        if number not in self._open:
            commands = connect(state.address, state.options, "shards")
            self._open[number] = Place(number, commands, state.options)
        return self._open[number]

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        for neighbour in self._open.values():
            neighbour.commands.close()


class ShardMoves:
    """Takes dead messages of one shard to queues of all. It is an `Elsewhere`."""

    def __init__(
        self, letters: DeadLetters, commands: CommandConnection, number: int, count: int, neighbours: Callable[[int], Place],
        close: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Move from the shard `number` of `count`.

        Args:
            letters: its dead letters.
            commands: the connection to it.
            number: its number.
            count: how many shards there are.
            neighbours: returns another shard by its number.
            close: closes the connections to the others.
        """
        self._letters, self._commands = letters, commands
        self._number, self._count = number, count
        self._neighbours = neighbours
        self.close = close

    def concerns(self, queues: Sequence[str]) -> bool:
        """Return whether any of the queues is in another shard."""
        return any(shard_of(queue, self._count) != self._number for queue in queues)

    def refresh(self, exchange: str) -> list[RoutingTable]:
        """Read the bindings of an exchange in the other shards."""
        others = (number for number in range(self._count) if number != self._number)
        return [self._neighbours(number).bindings.refresh(exchange) for number in others]

    def move(self, move: Move, source: bytes, counter: str) -> int:
        """Move a message from the set `source`; return how many queues took it, ALREADY_GONE, or NO_TARGET."""
        letter, targets = move.letter, move.targets
        numbers = {queue: shard_of(queue, self._count) for queue in targets}
        others = {queue: self._neighbours(number) for queue, number in numbers.items() if number != self._number}
        # In this order: what is seen here now was not moved before these moments.
        deadlines = {queue: server_ms(other.commands) + STORE_WITHIN_MS for queue, other in others.items()}
        if self._commands.command("ZSCORE", source, letter.tag) is None:
            return ALREADY_GONE
        name = f"{self._number}/{letter.queue}/{letter.tag}/{letter.died_ms}"
        taken = [queue for queue, other in others.items() if self._store(other, queue, move, name, deadlines[queue])]
        here = [queue for queue in targets if queue not in others]
        moved = self._letters.move_here(move.to(here), source, counter) if here else NO_TARGET
        if moved == NO_TARGET and taken:
            gone = self._commands.call(
                script("remove_stored"), [source, *self._letters.places_of(letter.queue)], letter.tag, counter,
                ",".join(map(pack_text, taken)),
            )  # fmt: skip
            moved = 0 if gone else ALREADY_GONE
        for queue in taken:
            other = others[queue]
            other.commands.call(script("finish_move"), [other.keys.queue(queue).moved_in], name, KEPT_MS)
        return moved if moved < 0 else moved + len(taken)

    def _store(self, other: Place, queue: str, move: Move, name: str, deadline_ms: int) -> bool:
        """Store a message in a queue of another shard, if it is not there yet; return False where there is no such queue."""
        keys, letter = other.keys.queue(queue), move.letter
        if move.life:
            other.queues.ensure_swept_once(queue)
        more: tuple[bytes, ...] = (keys.moved_in,)
        if letter.body is None:
            body = self._letters.body(letter)
            if body is None:
                return False
            more = (*more, stage(other.commands, keys, f"{letter.tag}.{letter.died_ms}".encode(), body))
        arguments = (name, deadline_ms, move.payload, letter.rank, move.life, move.description, KEPT_MS)
        call = (other.commands, script("store_once"), [*keys.publish, *more], *arguments)
        reply = call_replicated(*call)
        if reply == b"NOQUEUE" and other.queues.revive(queue):
            reply = call_replicated(*call)
        if reply == b"LATE":
            raise TimeoutError(f"the move of message {letter.tag} to queue {queue!r} took too long; it is tried again")
        return bool(reply != b"NOQUEUE")
