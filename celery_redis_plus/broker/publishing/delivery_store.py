"""The state of tracked deliveries on the server: who shall answer, who has, and who was too late.

It lives in `track:{ID}` with a TTL, so that any process can pick a delivery up by its id. Every answer is also an entry of the
stream `track_events:{ID}`, on which callers that wait for answers block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Seconds for which a resolved delivery can still be looked up.
RESOLVED_KEPT_S = 3600.0
#: Milliseconds for which one process alone resolves the recipients that were too late.
ASKER_MS = 10_000

#: Its message waits, or no consumer has looked at it yet; a consumer has it.
PENDING, DELIVERED = "pending", "delivered"
ACKED, REJECTED = "acked", "rejected"
#: It did not answer in time. Its queue did not take the message. Its message was deleted, or is gone, and it is unknown how.
#: (Scripts report two more: `expired`, `moved`.)
TIMED_OUT, REFUSED, GONE = "timed_out", "refused", "gone"
#: Not an outcome: the message is in the recipient's queue, under this tag.
QUEUED = "queued"

_TO = "to:"


@dataclass(frozen=True, slots=True)
class About:
    """What was published."""

    exchange: str
    routing_key: str
    #: Whether the recipients are subscribers of a fanout exchange, and not queues.
    broadcast: bool


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tracked delivery as the server knows it."""

    id: str
    about: About
    #: Recipient (a queue's name, or a subscriber's id) -> outcome.
    outcomes: Mapping[str, str]
    #: Milliseconds since the epoch, on the server's clock; None: not all have answered.
    resolved_ms: int | None

    @property
    def complete(self) -> bool:
        """Whether all have acked; not without recipients."""
        return (
            bool(self.outcomes) and self.resolved_ms is not None and all(outcome == ACKED for outcome in self.outcomes.values())
        )


@dataclass(frozen=True, slots=True)
class OverdueDelivery:
    """Who did not answer in time."""

    about: About
    #: What to keep for recipients without a queue of their own; empty where they have one.
    payload: bytes
    #: Recipient -> its message's tag, where it is known.
    recipients: Mapping[str, str] = field(default_factory=dict)


class DeliveryStore:
    """Tracked deliveries over one connection. All methods raise as `CommandConnection.call` does.

    Those that read a delivery raise InvalidArgument where somebody else has written there.
    """

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys

    def begin(self, track: str, about: About, recipients: Sequence[str], ack_timeout_s: float, payload: bytes = b"") -> None:
        """Track a delivery that is about to be published."""
        timeout_ms = int(ack_timeout_s * 1000)
        text = json.dumps([about.exchange, about.routing_key, about.broadcast])
        call = (script("track"), self._keys.track(track))
        deadline = self._commands.call(
            *call, timeout_ms, int(RESOLVED_KEPT_S * 1000), text, payload, *map(encode_name, recipients)
        )
        # For the case that we die before it is resolved: the maintenance tasks of any process then see to it.
        self._commands.command("ZADD", self._keys.tracks, deadline, track)

    def report(self, track: str, recipient: str, outcome: str, tag: str = "", *, wait: bool = False) -> None:
        """Note an answer; without `wait` the reply is read with the next call."""
        call = self._commands.call if wait else self._commands.send_nowait
        call(script("track_report"), self._keys.track(track), encode_name(recipient), outcome, tag)

    def state(self, track: str) -> Tracked | None:
        """Return what is known; None where nothing is, or is any more."""
        flat: list[bytes] = self._commands.command("HGETALL", self._keys.track(track)[0])
        fields = {decode_name(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        if "about" not in fields:
            return None
        outcomes = {name.removeprefix(_TO): decode_name(value) for name, value in fields.items() if name.startswith(_TO)}
        resolved = fields.get("resolved", b"")
        if resolved and not resolved.isdigit():
            raise InvalidArgument(f"field 'resolved' of delivery {track} is no number: {resolved[:50]!r}")
        return Tracked(track, _about(fields["about"]), outcomes, int(resolved) if resolved else None)

    def overdue(self, track: str, asker: str) -> OverdueDelivery | float | None:
        """Return who is too late; or after how many seconds to ask again; None where the delivery is resolved or unknown.

        Who gets an answer puts the messages to the dead letters, and then reports TIMED_OUT.
        """
        wait_ms, *rest = self._commands.call(script("track_overdue"), self._keys.track(track)[:1], asker, ASKER_MS)
        if wait_ms:
            return None if wait_ms < 0 else wait_ms / 1000
        about, payload, *pairs = rest
        names = [decode_name(name) for name in pairs]
        return OverdueDelivery(_about(about), payload, dict(zip(names[::2], names[1::2], strict=True)))

    def forgotten(self, limit: int = 100) -> list[str]:
        """Return deliveries that are not resolved although their time is over."""
        now = self._commands.command("TIME")
        found = self._commands.command("ZRANGE", self._keys.tracks, 0, int(now[0]) * 1000, "BYSCORE", "LIMIT", 0, limit)
        return [decode_name(name) for name in found]

    def end(self, track: str) -> None:
        """Note that a delivery needs no care any more."""
        self._commands.command("ZREM", self._keys.tracks, encode_name(track))

    def kill(self, queue: str, tag: str, reason: str, dead_letter_max: int) -> str:
        """Make a dead letter of a message, wherever it is; return `died`, `dead` (it was one) or `gone`."""
        reply: bytes = self._commands.call(
            script("dead_letter_one"), self._keys.queue(queue).state_keys, tag, reason, dead_letter_max
        )
        return reply.decode()


def _about(text: bytes) -> About:
    try:
        exchange, routing_key, broadcast = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"the description of a delivery cannot be read: {text[:50]!r}") from error
    return About(str(exchange), str(routing_key), bool(broadcast))
