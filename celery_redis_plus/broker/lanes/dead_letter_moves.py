"""Moves dead messages into queues of other lanes, which no script reaches together: each arrives once, whatever dies in between.

First the message is stored in the other lane, under an id that a second call finds again. Then it is removed here, and then the
id may be forgotten there. A process that slept in between could store a message that others have moved long ago: so a call that
comes later than a minute after the message was seen here is refused, and ids outlive their move by ten. See
docs/design/0020-lanes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.store import ALREADY_GONE, NO_TARGET, DeadLetters, Move
from celery_redis_plus.broker.publishing.publisher import stage
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.events import pack_text
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.broker.lanes.lanes import Lane, Lanes

#: Milliseconds from the look at the source until which a message may be stored; and for which ids outlive their move.
STORE_WITHIN_MS, KEPT_MS = 60_000, 600_000


class LaneMoves:
    """Moves the dead messages of one lane. Methods raise as `CommandConnection.call` does."""

    def __init__(self, letters: DeadLetters, lanes: Lanes) -> None:
        """Move from the own lane of `lanes`, whose dead letters are `letters`."""
        self._letters = letters
        self._lanes = lanes

    def concern(self, targets: Sequence[str]) -> bool:
        """Return whether any of the queues is in another lane."""
        return any(self._lanes.of(queue) is not self._lanes.own for queue in targets)

    def move(self, move: Move, source: bytes, counter: str) -> int:
        """Move a message from the set `source`; return how many queues took it, ALREADY_GONE, or NO_TARGET."""
        own, letter, targets = self._lanes.own, move.letter, move.targets
        others = {queue: lane for queue in targets if (lane := self._lanes.of(queue)) is not own}
        # In this order: what is seen here now was not moved before these moments.
        deadlines = {queue: server_ms(lane.commands) + STORE_WITHIN_MS for queue, lane in others.items()}
        if own.commands.command("ZSCORE", source, letter.tag) is None:
            return ALREADY_GONE
        name = f"{self._lanes.own_number}/{letter.queue}/{letter.tag}/{letter.died_ms}"
        taken = [queue for queue, lane in others.items() if self._store(lane, queue, move, name, deadlines[queue])]
        here = [queue for queue in targets if queue not in others]
        moved = self._letters.move_here(move.to(here), source, counter) if here else NO_TARGET
        if moved == NO_TARGET and taken:
            gone = own.commands.call(
                script("leave_lane"), [source, *self._letters.places_of(letter.queue)], letter.tag, counter,
                ",".join(map(pack_text, taken)),
            )  # fmt: skip
            moved = 0 if gone else ALREADY_GONE
        for queue in taken:
            lane = others[queue]
            lane.commands.call(script("finish_lane_move"), [lane.keys.queue(queue).moved_in], name, KEPT_MS)
        return moved if moved < 0 else moved + len(taken)

    def _store(self, lane: Lane, queue: str, move: Move, name: str, deadline_ms: int) -> bool:
        """Store a message in a queue of another lane, if it is not there yet; return False where there is no such queue."""
        keys, letter = lane.keys.queue(queue), move.letter
        if move.life:
            lane.queues.ensure_swept_once(queue)
        more: tuple[bytes, ...] = (keys.moved_in,)
        if letter.body is None:
            body = self._letters.body(letter)
            if body is None:
                return False
            more = (*more, stage(lane.commands, keys, f"{letter.tag}.{letter.died_ms}".encode(), body))
        arguments = (name, deadline_ms, move.payload, letter.rank, move.life, move.description, KEPT_MS)
        reply = lane.commands.call(script("store_from_lane"), [*keys.publish, *more], *arguments)
        if reply == b"NOQUEUE" and lane.queues.revive(queue):
            reply = lane.commands.call(script("store_from_lane"), [*keys.publish, *more], *arguments)
        if reply == b"LATE":
            raise TimeoutError(f"the move of message {letter.tag} to queue {queue!r} took too long; it is tried again")
        return bool(reply != b"NOQUEUE")
