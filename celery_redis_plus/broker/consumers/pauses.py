"""Pauses queues: their consumers get nothing, publishers go on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS, time_of_ms
from celery_redis_plus.errors import InvalidArgument, QueueNotFound
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


@dataclass(frozen=True, slots=True)
class Pause:
    """Why and since when a queue is paused."""

    queue: str
    reason: str
    since: datetime
    #: When it ends by itself; None: when somebody resumes the queue.
    until: datetime | None
    #: Who paused it; '' where that was not said.
    by: str = ""


class Pausing:
    """Pauses over one connection. They stand in the queues' records, and so survive restarts of everything."""

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys

    def pause(self, queue: str, reason: str, for_s: float | None = None, *, by: str = "") -> None:
        """Give the consumers of `queue` nothing more, for `for_s` seconds or until it is resumed. A later pause replaces it.

        `by` says who it is.

        Raises:
            InvalidArgument: no reason is given, or `for_s` is not above 0, or over a hundred years.
            QueueNotFound: there is no such queue.
        """
        if not reason.strip():
            raise InvalidArgument(f"a pause of queue {queue!r} has no reason; allowed is a text that tells others why")
        if for_s is not None and not 0 < for_s <= MAX_DELAY_MS / 1000:
            raise InvalidArgument(
                f"a pause of queue {queue!r} for {for_s!r} s; allowed is more than 0 and up to {MAX_DELAY_MS // 1000} (a hundred "
                "years), or None for good"
            )
        for_ms = 0 if for_s is None else max(1, int(for_s * 1000))
        if not self._commands.call(script("pause"), self._keys.queue(queue).consumer_keys, reason, for_ms, by):
            raise QueueNotFound(f"there is no queue {queue!r}")

    def resume(self, queue: str) -> bool:
        """Let the consumers of `queue` go on; return whether it was paused."""
        return bool(self._commands.call(script("pause"), self._keys.queue(queue).consumer_keys, "", 0, ""))

    def paused(self, queue: str) -> Pause | None:
        """Return the pause of `queue`, which may be over by a moment; None: it has none."""
        meta = self._keys.queue(queue).meta
        fields = self._commands.command("HMGET", meta, "paused", "paused_at", "paused_until", "paused_by")
        reason, since, until, by = fields
        if reason is None:
            return None
        end = _time(until) if stored_number(until) else None
        return Pause(queue, reason.decode("utf-8", "replace"), _time(since), end, (by or b"").decode("utf-8", "replace"))


def _time(text: bytes | None) -> datetime:
    return time_of_ms(stored_number(text))
