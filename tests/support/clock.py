"""A clock for the scripts that a test sets: the one include that reads TIME is replaced by one that reads a key.

The server's uptime, by the real clock, is unknown to them then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
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
def composed_with(includes: Mapping[str, str]) -> Iterator[None]:
    """Compose all scripts with other includes (path -> text); objects that keep scripts have to be made inside."""
    read, compose = scripts._read, scripts.compose  # noqa: SLF001 - the one seam between a script and its text
    composed = _composed(frozenset(includes.items()))

    def compose_once(source: str, included: set[str] | None = None) -> str:
        if included is not None:
            return compose(source, included)
        if source not in composed:
            composed[source] = compose(source)
        return composed[source]

    scripts._read = lambda path: includes.get(path) or read(path)  # noqa: SLF001
    scripts.compose = compose_once
    scripts.script.cache_clear()
    try:
        yield
    finally:
        scripts._read, scripts.compose = read, compose  # noqa: SLF001
        scripts.script.cache_clear()


@cache
def _composed(includes: frozenset[tuple[str, str]]) -> dict[str, str]:
    """Return what scripts became with these includes: a fifth of the time of tests with a clock of their own went into that."""
    return {}


def scripts_read_a_key() -> AbstractContextManager[None]:
    """Compose all scripts with the clock that `ServerClock` sets."""
    return composed_with(INCLUDES)


def scripts_with_steps() -> AbstractContextManager[None]:
    """Compose all scripts with the clock that `SteppingClock` steps."""
    return composed_with(OFFSET_INCLUDES)


OFFSET_KEY = "test:clock_offset"
_OFFSET = f"tonumber(redis.call('GET', '{OFFSET_KEY}') or 0)"
OFFSET_INCLUDES = {
    "include/now.lua": f"""\
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + {_OFFSET}
end
local function now_ms_and_us()
  local now = now_ms()
  return now, string.format('%.0f', now * 1000)
end
""",
    "include/uptime.lua": INCLUDES["include/uptime.lua"],
}


class SteppingClock:
    """The server's own clock, which runs on, and can be set back and forward for the scripts."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def step(self, seconds: float) -> None:
        self._client.incrby(OFFSET_KEY, round(seconds * 1000))

    @property
    def now_ms(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000 + int(self._client.get(OFFSET_KEY) or 0))
