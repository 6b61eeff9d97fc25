"""Which server the Sentinels name as the master: asked for each new connection, and once a second while connections are used.

A master that is replaced on command goes on for about ten seconds before a Sentinel makes it a replica (`sentinel.c`:
SENTINEL_PUBLISH_PERIOD * 4, then the next INFO), and what it takes meanwhile is lost. So connections to it are left sooner.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from redis.exceptions import RedisError

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.connection.sentinel_address import server_text
from celery_redis_plus.connection.sentinel_question import Master, NoAnswer
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from celery_redis_plus.connection.sentinel_address import Sentinels

logger = logging.getLogger(__name__)

#: Seconds between two looks whether the master has changed.
LOOK_S = 1.0


class Wakes(Protocol):
    """What ends the wait of an event loop."""

    def wake(self) -> None:
        """End it."""


#: Asks the Sentinel at a host and port. Raises NoAnswer, or what a connection raises.
Ask = Callable[[str, int], Master]


class MasterFinder:
    """Asks the Sentinels of one address, for all connections of this process. Thread-safe."""

    def __init__(self, sentinels: Sentinels, ask: Ask) -> None:
        """Ask `sentinels` by `ask`."""
        self._sentinels = sentinels
        self._ask = ask
        #: The master of the newest configuration that this process knows of.
        self.master: Master | None = None
        #: The place of the Sentinel that is asked first: the last one that had a good answer.
        self._first = 0
        self._look_at = 0.0
        self._lock = lock_of(self)
        self._wakers: weakref.WeakSet[Wakes] = weakref.WeakSet()

    def answers(self) -> Iterator[tuple[str, Master | Exception]]:
        """Ask one Sentinel after another; yield where it is, and its answer. A caller that is content stops."""
        hosts = self._sentinels.hosts
        first = self._first
        for place in range(first, first + len(hosts)):
            host, port = hosts[place % len(hosts)]
            try:
                answer: Master | Exception = self._ask(host, port)
                self._first = place % len(hosts)
            except (NoAnswer, CeleryRedisPlusError, RedisError, OSError) as error:
                answer = error
            yield server_text(host, port), answer

    def opened(self, master: Master) -> None:
        """Note the master to which a connection was opened: it has said that it is one."""
        if self.master is not None and not self.master.is_at(master.host, master.port):
            logger.info("Sentinels %s: the master %r is now %s", self._sentinels.servers, self._sentinels.master_name, master)
        self.master = master
        self._look_at = time.monotonic() + LOOK_S

    def wake_on_move(self, waker: Wakes) -> None:
        """Wake an event loop when the master moves: its connections to the old one are idle perhaps."""
        self._wakers.add(waker)

    def has_moved(self, host: str, port: int) -> bool:
        """Return whether the master is another one than the server at `host` and `port`, as far as this process knows."""
        return self.master is not None and not self.master.is_at(host, port)

    def look(self) -> None:
        """Ask one Sentinel whether the master is the one that is known, if a second has passed since somebody did so.

        Only an answer of a newer configuration counts: a Sentinel that is cut off from the others names the old master.
        """
        if time.monotonic() < self._look_at or not self._lock.acquire(blocking=False):
            return
        try:
            self._look_at = time.monotonic() + LOOK_S
            host, port = self._sentinels.hosts[self._first]
            try:
                found = self._ask(host, port)
            except (NoAnswer, CeleryRedisPlusError, RedisError, OSError) as error:
                logger.debug("Sentinel %s does not name the master: %s", server_text(host, port), error)
                self._first = (self._first + 1) % len(self._sentinels.hosts)
                return
            known = self.master
            if known is None or found.is_newer_than(known):
                self.master = found
                if known is not None and not found.is_at(known.host, known.port):
                    for waker in list(self._wakers):
                        waker.wake()
        finally:
            self._lock.release()


#: The finders of this process, by address and user.
_finders: weakref.WeakValueDictionary[tuple[object, ...], MasterFinder] = weakref.WeakValueDictionary()


def finder_for(key: tuple[object, ...], sentinels: Sentinels, ask: Ask) -> MasterFinder:
    """Return the finder that all connectors of this process with the same `key` share."""
    finder = _finders.get(key)
    if finder is None:
        # Two threads may make one each, which does no harm.
        finder = _finders[key] = MasterFinder(sentinels, ask)
    return finder
