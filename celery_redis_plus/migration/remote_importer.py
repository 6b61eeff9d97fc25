"""Moves messages from kombu's own Redis transport on another server, or in another database, to this one.

No script reaches two servers, so each message takes two steps. The first moves it there from kombu's list to a list of ours,
where no worker of kombu's finds it, with an id in front. The second stores it here under that id, unless it is stored already,
and then removes it there. A kill at any moment leaves it in that list, and the next run goes on with it.

The id is ours: producers in other languages give the same delivery tag to several messages, or publish the same text twice.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.migration.importer import Importer
from celery_redis_plus.migration.kombu_broker import next_count
from celery_redis_plus.migration.target import NO_QUEUE, Found

#: Milliseconds for which ids are kept: while a migration goes on, or was killed; and after its end.
KEPT_MS: Final = 7 * 86_400_000
KEPT_AFTERWARDS_MS: Final = 3_600_000
#: An element of our list there: id and message.
_MOVING = re.compile(rb"([0-9a-f]{32}) (.*)", re.DOTALL)
#: Moves messages within kombu's server. Not in lua/: those scripts need Redis 7.0, and kombu's server may be older.
#: KEYS 1 kombu's list or hash 2 its index of unacked messages 3 our list
#: ARGV 1 how many elements at the tail of the list are searched, then for each message: 2 id 3 delivery tag, '' in a list
#:      4 its text in KEYS[1] 5 the message, '' where that is the text
#: Returns for each message 1, or 0 where it is there no more.
MOVE_THERE: Final = """
local there, moved = {}, {}
if ARGV[3] == '' then
  for _, text in ipairs(redis.call('LRANGE', KEYS[1], -ARGV[1], -1)) do there[text] = (there[text] or 0) + 1 end
end
for i = 2, #ARGV, 4 do
  local id, tag, text, message = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local found
  if tag == '' then found = (there[text] or 0) > 0 else found = redis.call('HGET', KEYS[1], tag) == text end
  if found then
    redis.call('LPUSH', KEYS[3], id .. ' ' .. (message == '' and text or message))
    if tag == '' then
      redis.call('LREM', KEYS[1], -1, text)
      there[text] = there[text] - 1
    else
      redis.call('ZREM', KEYS[2], tag)
      redis.call('HDEL', KEYS[1], tag)
    end
  end
  moved[#moved + 1] = found and 1 or 0
end
return moved
"""


class RemoteImporter(Importer):
    """Takes messages of a kombu installation elsewhere; `kombu` has a connection of its own."""

    def take_waiting(self, queue: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Move what an earlier run has left in our list there, then as `Importer` does."""
        if self._target.convert(queue, ()) is None:
            left = sum(self._kombu.lengths(queue).values()) + self._kombu.moving(queue)
            if left:
                self.report.of(queue).leave(left, NO_QUEUE)
            return
        moved = self._finish(queue)
        if moved:
            yield moved
        yield from super().take_waiting(queue, stopped)
        self._forget(queue)

    def _move(self, queue: str, found: Sequence[Found], source: tuple[bytes, bytes], searched: int) -> int:
        return self._store(queue, self._move_there(queue, found, source, searched))

    def _move_there(self, queue: str, found: Sequence[Found], source: tuple[bytes, bytes], searched: int) -> list[Found]:
        """Move messages to our list there; return those that were still there, as they stand in it."""
        if not found:
            return []
        moving, arguments = [], []
        for one in found:
            identity = secrets.token_hex(16).encode()
            moving.append(replace(one, text=b"%b %b" % (identity, one.message)))
            arguments += [identity, one.delivery_tag, one.text, b"" if one.message == one.text else one.message]
        keys = (*source, self._kombu.keys.moving(queue))
        moved = self._kombu.commands.command("EVAL", MOVE_THERE, len(keys), *keys, searched, *arguments)
        return [one for one, is_moved in zip(moving, moved, strict=True) if is_moved]

    def _store(self, queue: str, found: Sequence[Found]) -> int:
        """Store here what is in our list there, and remove it there; return how many were stored."""
        stored = self._target.store(
            "store_migrated", queue, (self._target.keys.queue(queue).migrated,), found, lambda one: (_id_of(one),), KEPT_MS
        )
        if stored is None:
            # Deleted a moment ago: the messages are in our list there, for the next run.
            self.report.of(queue).leave(len(found), NO_QUEUE)
            return 0
        if found:
            moving = self._kombu.keys.moving(queue)
            self._kombu.commands.ask([("LREM", moving, -1, one.text) for one in found])
        return stored

    def _finish(self, queue: str) -> int:
        """Store what an earlier run has left in our list there; return how many were stored."""
        total, skip, count = 0, 0, 1
        while True:
            page = self._kombu.page(self._kombu.keys.moving(queue), skip, count)
            if not page:
                return total
            found = self._target.convert(queue, [(text, b"", _message_of(text)) for text in page])
            if found is None:
                return total
            total += self._store(queue, found)
            count = next_count(count, page)
            # Those that cannot be read stay there.
            skip += len(page) - len(found)

    def _forget(self, queue: str) -> None:
        """Let the ids of a queue that is done expire."""
        commands, migrated = self._target.commands, self._target.keys.queue(queue).migrated
        now_ms = server_ms(commands)
        commands.command("ZREMRANGEBYSCORE", migrated, "-inf", now_ms - KEPT_AFTERWARDS_MS)
        commands.command("PEXPIRE", migrated, KEPT_AFTERWARDS_MS)


def _message_of(element: bytes) -> bytes:
    """Return the message in an element of our list there."""
    match = _MOVING.fullmatch(element)
    return match[2] if match else element


def _id_of(one: Found) -> bytes:
    """Return the id under which a message of our list there is stored once."""
    match = _MOVING.fullmatch(one.text)
    # Without one it was put there by hand.
    return match[1] if match else hashlib.sha256(one.text).hexdigest().encode()
