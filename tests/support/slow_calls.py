"""Which commands keep a server busy for longer than a bound: by its SLOWLOG, and by how often each was called."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_redis_plus.connection import command_connection
from celery_redis_plus.connection.protocol import pack_call, pack_command
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.scripts import script, script_names

if TYPE_CHECKING:
    import redis

#: SLOWLOG has the time on the wall, and so the time in which others have the CPU. Of a kind with so many calls the median counts.
MEDIAN_FROM = 5


class SlowCalls:
    """Calls by script or command, of the threads that are watched: maintenance threads do what workers do, too."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.calls: Counter[str] = Counter()
        #: Kinds whose median, or any of whose few calls, took longer than the bound: how many calls did, and the longest, in µs.
        self.slow: dict[str, tuple[int, int]] = {}

    def read(self) -> None:
        found: Counter[str] = Counter()
        longest: Counter[str] = Counter()
        names = {script(name).sha: name for name in script_names()}
        for entry in self._client.slowlog_get(10_000):
            words: list[bytes] = [*entry["command"].split(), b""]
            command = words[0].decode().upper()
            kind = names.get(words[1], command) if command == "EVALSHA" else command
            found[kind] += 1
            longest[kind] = max(longest[kind], entry["duration"])
        self.slow = {
            kind: (count, longest[kind])
            for kind, count in found.items()
            if kind in self.calls and (self.calls[kind] < MEDIAN_FROM or count > self.calls[kind] // 2)
        }


def is_main_thread() -> bool:
    """Return whether this is the main thread, which runs the commands of a test."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def slow_calls(client: redis.Redis, over_us: int, is_watched: Callable[[], bool] = is_main_thread) -> Iterator[SlowCalls]:
    """Note the commands of this process that take the server longer than `over_us`; read them from `slow` at the end.

    `is_watched` tells whether the thread that calls it is one whose commands count.
    """
    found = SlowCalls(client)
    # Event logs have a connection of their own.
    asked = EventLog.ask
    names = {script(name).sha: name for name in script_names()}

    def count(kind: str) -> None:
        if is_watched():
            found.calls[kind] += 1

    def call(sha: bytes, *arguments: Any) -> bytes:
        count(names[sha])
        return pack_call(sha, *arguments)

    def command(arguments: Any) -> bytes:
        count(str(arguments[0]).upper())
        return pack_command(arguments)

    def ask(log: EventLog, commands: Any, **options: Any) -> list[Any]:
        for one in commands:
            count(str(one[0]).upper())
        return asked(log, commands, **options)

    client.config_set("slowlog-max-len", 10_000)
    client.config_set("slowlog-log-slower-than", over_us)
    client.slowlog_reset()
    try:
        with (
            mock.patch.object(command_connection, "pack_call", call),
            mock.patch.object(command_connection, "pack_command", command),
            mock.patch.object(EventLog, "ask", ask),
        ):
            yield found
        found.read()
    finally:
        client.config_set("slowlog-log-slower-than", 10_000)
        client.slowlog_reset()
