"""Puts failed messages of queues with `x-redrive` back to work, in the order in which they died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.redrive_rule import RedriveRule
from celery_redis_plus.broker.dead_letters.store import DEAD_LETTER_PAGE, Move, replay_of
from celery_redis_plus.broker.queue_failures import of_our_keys
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import decode_name

if TYPE_CHECKING:
    from celery_redis_plus.broker.dead_letters.store import DeadLetter, DeadLetters
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Header with the number of times that a message was redriven.
REDRIVES = "x-redrives"
#: What failed. An operator has cancelled others, they are too old, or there was no room, no queue or no answer.
REASONS = frozenset({"rejected", "delivery_limit", "retry_policy"})


@dataclass(slots=True)
class Walk:
    """How far the dead letters of a queue were looked at, from the longest dead one on.

    Attributes:
        died_ms: when the last one died.
        stayed: how many of those that died then were looked at and stay.
        at_end: no other one has been dead for long enough.
    """

    died_ms: float = 0
    stayed: int = 0
    at_end: bool = False


class Redriver:
    """Redrives over one connection. Its methods raise as `CommandConnection.call`."""

    def __init__(self, commands: CommandConnection, keys: Keys, letters: DeadLetters) -> None:
        self._commands = commands
        self._keys = keys
        self._letters = letters

    def rules(self, queues: Sequence[str]) -> Mapping[str, RedriveRule]:
        """Return the rules of those of the queues that have one, in one round trip."""
        found = of_our_keys(self._commands.pipeline([("HGET", self._keys.queue(name).meta, "redrive") for name in queues]))
        rules = {}
        for name, text in zip(queues, found, strict=True):
            if text is not None:
                try:
                    rules[name] = RedriveRule.parse(decode_name(text))
                except ValueError:
                    # Somebody else has written there: nothing of the queue is redriven.
                    continue
        return rules

    def redrive(self, queue: str, rule: RedriveRule, walk: Walk, most: int) -> int:
        """Look at the next page of a queue's dead letters and redrive up to `most` of them; return how many were.

        `walk` goes on. One that cannot be written again stays, as does one that was redriven so often already.
        """
        before = server_ms(self._commands) - rule.after_ms
        page = ("ZRANGE", self._keys.queue(queue).dead, walk.died_ms, before, "BYSCORE", "LIMIT", walk.stayed, DEAD_LETTER_PAGE)
        found = [decode_name(tag) for tag in self._commands.command(*page)]
        walk.at_end = len(found) < DEAD_LETTER_PAGE
        letters, moves = self._letters.read(queue, found), list[Move]()
        looked_at = len(letters)
        for number, letter in enumerate(letters):
            redrives = _redrives(letter)
            if letter.reason in REASONS and redrives < rule.times:
                if len(moves) == most:
                    looked_at, walk.at_end = number, False
                    break
                headers = {**letter.headers, REDRIVES: redrives + 1}
                try:
                    moves.append(replay_of(replace(letter, headers=headers), [queue]))
                except InvalidArgument:
                    continue
        moved = {move.letter.tag for move, taken in zip(moves, self._letters.replay_all(moves), strict=True) if taken > 0}
        if looked_at:
            last_ms = letters[looked_at - 1].died_ms
            stay = sum(one.died_ms == last_ms and one.tag not in moved for one in letters[:looked_at])
            walk.died_ms, walk.stayed = last_ms, stay + (walk.stayed if last_ms == walk.died_ms else 0)
        elif not letters:
            # The messages of a whole page are gone.
            walk.stayed += len(found)
        return len(moved)


def _redrives(letter: DeadLetter) -> int:
    """Return how often a message was redriven; a publisher may have written anything there."""
    count = letter.headers.get(REDRIVES)
    return count if isinstance(count, int) and count > 0 else 0
