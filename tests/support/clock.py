"""A clock for the scripts that a test sets: the one include that reads TIME is replaced by one that reads a key.

The server's uptime, by the real clock, is unknown to them then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_redis_plus import scripts

if TYPE_CHECKING:
    import redis

KEY = "test:clock"
KEY_READER = f"""\
local function now_ms()
  return tonumber(redis.call('GET', '{KEY}'))
end
local function now_ms_and_us()
  local now = redis.call('GET', '{KEY}')
  return tonumber(now), now .. '000'
end
"""
INCLUDES = {"include/now.lua": KEY_READER, "include/uptime.lua": "local function up_for_ms() end\n"}


class ServerClock:
    """What the scripts take for the time, in ms since the epoch."""

    def __init__(self, client: redis.Redis, now_ms: int) -> None:
        self._client = client
        #: The latest time that it ever was: clocks go back.
        self.latest_ms = now_ms
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.latest_ms = max(self.latest_ms, now_ms)
        self._client.set(KEY, now_ms)

    def advance(self, ms: int) -> None:
        self.set(self.now_ms + ms)


@contextmanager
def scripts_read_a_key() -> Iterator[None]:
    """Compose all scripts with the clock that `ServerClock` sets; objects that keep scripts have to be made inside."""
    read = scripts._read  # noqa: SLF001 - the one seam between a script and its text
    scripts._read = lambda path: INCLUDES.get(path) or read(path)  # noqa: SLF001
    scripts.script.cache_clear()
    try:
        yield
    finally:
        scripts._read = read  # noqa: SLF001
        scripts.script.cache_clear()
