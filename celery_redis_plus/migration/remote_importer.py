"""Moves messages from kombu's own Redis transport on another server, or in another database, to this one.

No script reaches two servers, so each message takes two steps. The first moves it there from kombu's list to a list of ours,
where no worker of kombu's finds it. The second stores it here under its delivery tag, unless it is stored already, and then
removes it there. A kill at any moment leaves it in that list, and the next run goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.migration.importer import message_in, unacked_pages
from celery_redis_plus.migration.kombu_broker import next_count
from celery_redis_plus.migration.target import NO_QUEUE, Target

if TYPE_CHECKING:
    from celery_redis_plus.migration.kombu_broker import KombuBroker, KombuUnacked

#: Milliseconds for which delivery tags are kept: while a migration goes on, or was killed; and after its end.
KEPT_MS: Final = 7 * 86_400_000
KEPT_AFTERWARDS_MS: Final = 3_600_000


class RemoteImporter:
    """Takes messages of a kombu installation elsewhere. See `Taking`."""

    def __init__(self, target: Target, kombu: KombuBroker) -> None:
        """Move into `target`; `kombu` has a connection of its own."""
        self._target = target
        self._kombu = kombu
        self.report = target.report

    def take_waiting(self, queue: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """See `Taking`."""
        source, moving = self._kombu.commands, self._kombu.keys.moving(queue)
        if self._target.convert(queue, ()) is None:
            left = sum(self._kombu.lengths(queue).values()) + self._kombu.moving(queue)
            if left:
                self.report.of(queue).leave(left, NO_QUEUE)
            return
        # What an earlier run has not finished.
        moved = self._transfer(queue)
        if moved:
            yield moved
        for step in self._kombu.lengths(queue):
            waiting = self._kombu.keys.list_of(queue, step)
            count = 1
            while not stopped():
                page = [text for text in _checked(source.pipeline([("RPOPLPUSH", waiting, moving)] * count)) if text is not None]
                if not page:
                    break
                yield self._transfer(queue)
                count = next_count(count, page)
        self._forget(queue)

    def take_unacked(
        self, older_than_s: float, only: Callable[[str], bool], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[int]:
        """See `Taking`."""
        for queue, those in unacked_pages(self._kombu, older_than_s, only, stopped):
            if self._target.convert(queue, ()) is None:
                self.report.of(queue).leave(len(those), NO_QUEUE)
                continue
            for one in those:
                self._move_unacked(queue, one)
            moved = self._transfer(queue)
            self.report.of(queue).unacked += moved
            yield moved

    def _move_unacked(self, queue: str, one: KombuUnacked) -> None:
        """Move an unacked message to our list there, unless it was settled meanwhile."""
        source, keys = self._kombu.commands, self._kombu.keys
        source.command("WATCH", keys.unacked)
        if source.command("HGET", keys.unacked, one.delivery_tag) != one.text:
            source.command("UNWATCH")
            return
        _checked(
            source.pipeline(
                [
                    ("MULTI",),
                    ("LPUSH", keys.moving(queue), message_in(one.text)),
                    ("HDEL", keys.unacked, one.delivery_tag),
                    ("ZREM", keys.unacked_index, one.delivery_tag),
                    ("EXEC",),
                ]
            )
        )

    def _transfer(self, queue: str) -> int:
        """Store here what is in our list there, and remove it there; return how many were stored."""
        source, moving = self._kombu.commands, self._kombu.keys.moving(queue)
        total, skip, count = 0, 0, 1
        while True:
            page = source.command("LRANGE", moving, -skip - count, -skip - 1)[::-1]
            if not page:
                return total
            found = self._target.convert(queue, [(text, b"", text) for text in page]) or []
            stored = self._target.store(
                "store_migrated", queue, (self._target.keys.queue(queue).migrated,), found,
                lambda one: (one.converted.delivery_tag,), KEPT_MS,
            )  # fmt: skip
            if stored is None:
                return total
            if found:
                _checked(source.pipeline([("LREM", moving, -1, one.text) for one in found]))
            total += stored
            count = next_count(count, page)
            # Those that cannot be read stay there.
            skip += len(page) - len(found)

    def _forget(self, queue: str) -> None:
        """Let the delivery tags of a queue that is done expire."""
        commands, migrated = self._target.commands, self._target.keys.queue(queue).migrated
        now_ms = server_ms(commands)
        commands.command("ZREMRANGEBYSCORE", migrated, "-inf", now_ms - KEPT_AFTERWARDS_MS)
        commands.command("PEXPIRE", migrated, KEPT_AFTERWARDS_MS)


def _checked(replies: list[Any]) -> list[Any]:
    """Return the replies of a pipeline; raise the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
