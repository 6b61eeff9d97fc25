"""Moves messages from this transport to kombu's own on another server, or in another database: the way back of `remote_importer`.

No script reaches two servers, so each message takes two steps. The first moves it, on our server, from its queue to the list
`leaving:{Q}`, with an id in front. The second stores it there under that id, unless it is stored already, and then removes it
here. A kill at any moment leaves it in that list, and the next run goes on with it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.migration.exporter import Exporter, Waiting
from celery_redis_plus.migration.kombu_broker import next_count, next_of_list
from celery_redis_plus.migration.remote_importer import KEPT_AFTERWARDS_MS, KEPT_MS

#: An element of the list: id, step of kombu's list, and message.
_LEAVING = re.compile(rb"([0-9a-f]{32}) (\d+) (.*)", re.DOTALL)
#: Stores messages on kombu's server, each once. Not in lua/: those scripts need Redis 7.0, and kombu's server may be older.
#: KEYS 1 ids of the messages that are stored (zset), then kombu's lists
#: ARGV 1 for how long ids are kept (ms)  2 now (ms since the epoch), then for each message: 3 id  4 number of its list in KEYS
#:      5 its text in the list
STORE_THERE: Final = """
for i = 3, #ARGV, 3 do
  if not redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('LPUSH', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
    redis.call('ZADD', KEYS[1], ARGV[2], ARGV[i])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""


class RemoteExporter(Exporter):
    """Gives messages to a kombu installation elsewhere; `kombu` has a connection of its own."""

    def give(self, queue: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Move what an earlier run has left on its way, then as `Exporter` does."""
        yield from self._finish(queue, stopped)
        yield from super().give(queue, stopped)
        if not stopped():
            self._forget(queue)

    def _give(self, queue: str, found: Sequence[Waiting]) -> int:
        leaving = [replace(one, text=b"%b %d %b" % (secrets.token_hex(16).encode(), one.step, one.text)) for one in found]
        given = self._give_to(queue, leaving, self._keys.queue(queue).leaving) if leaving else []
        self._store(queue, [one.text for one, waited in zip(leaving, given, strict=True) if waited])
        return sum(given)

    def _finish(self, queue: str, stopped: Callable[[], bool]) -> Iterator[int]:
        """Store there what an earlier run has moved to the list; yield how many it were."""
        skip, count = 0, 1
        while not stopped():
            page = next_of_list(self._commands, self._keys.queue(queue).leaving, skip, count)
            if not page:
                return
            ours = [one for one in page if _LEAVING.fullmatch(one)]
            self._store(queue, ours)
            self.report.of(queue).ready += len(ours)
            yield len(ours)
            # What somebody else has put there stays.
            skip += len(page) - len(ours)
            count = next_count(count, page)

    def _store(self, queue: str, elements: Sequence[bytes]) -> None:
        """Store messages there, and remove them from the list here."""
        if not elements:
            return
        parts = [match.groups() for match in map(_LEAVING.fullmatch, elements) if match]
        steps = sorted({int(step) for _, step, _ in parts})
        keys = [self._kombu.keys.taken(queue), *(self._kombu.keys.list_of(queue, step) for step in steps)]
        messages = [part for id_, step, text in parts for part in (id_, steps.index(int(step)) + 2, text)]
        commands = self._kombu.commands
        commands.command("EVAL", STORE_THERE, len(keys), *keys, KEPT_MS, server_ms(commands), *messages)
        leaving = self._keys.queue(queue).leaving
        self._commands.ask([("LREM", leaving, -1, one) for one in elements])

    def _forget(self, queue: str) -> None:
        """Let the ids of a queue that is done expire."""
        self._kombu.commands.command("PEXPIRE", self._kombu.keys.taken(queue), KEPT_AFTERWARDS_MS)
