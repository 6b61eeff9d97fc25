"""Asks once a second whether the masters of a process have moved: one question for all brokers that the same servers know of.

A process with several shards has a master, and a finder, for each. The same nodes of a cluster, or the same Sentinels, know all.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.connection.host_lists import server_text
from celery_redis_plus.connection.master_question import NoAnswer
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from celery_redis_plus.connection.master_inquiry import MasterInquiry
    from celery_redis_plus.connection.master_question import Question

logger = logging.getLogger(__name__)

#: Seconds between two looks whether the master has changed.
LOOK_S = 1.0
#: Seconds that a caller waits for the answer to a look, which takes 1 ms.
LOOK_WAIT_S = 0.05

Hosts = tuple[tuple[str, int], ...]


class Learns(Protocol):
    """A finder."""

    def learn(self, fetched: Any, host: str, place: tuple[str, int]) -> None:
        """Take what the server at `place`, on `host`, has answered."""


class MasterLooks:
    """The looks of all finders that ask the same servers in the same way. Thread-safe."""

    def __init__(self, inquiry: MasterInquiry) -> None:
        """Ask by `inquiry`."""
        self.inquiry = inquiry
        self._finders: weakref.WeakSet[Learns] = weakref.WeakSet()
        #: The place of the one that is asked by the next look: each look asks another one.
        self._next = 0
        #: Those whose last answer came late, or not at all: a machine without power refuses nothing.
        self._slow: set[tuple[str, int]] = set()
        self._look_at = 0.0
        self._looker: threading.Thread | None = None
        self._lock = lock_of(self)

    def join(self, finder: Learns) -> None:
        """Let a finder learn of the answers."""
        self._finders.add(finder)

    @property
    def next_at(self) -> float:
        """When somebody is asked next, on the monotonic clock, in seconds."""
        return self._look_at

    def note_answer(self) -> None:
        """Note that the only finder has just heard who the master is."""
        if len(self._finders) == 1:
            self._look_at = time.monotonic() + LOOK_S

    def is_slow(self, place: tuple[str, int]) -> bool:
        """Return whether the last answer of the server at `place` came late, or not at all."""
        return place in self._slow

    @contextmanager
    def timed(self, place: tuple[str, int]) -> Iterator[None]:
        """Note how long the server at `place` takes to answer: all finders ask slow ones last."""
        began = time.monotonic()
        try:
            yield
        finally:
            if time.monotonic() - began > LOOK_WAIT_S:
                self._slow.add(place)
            else:
                self._slow.discard(place)

    def look(self, question: Question, hosts: Hosts) -> None:
        """Have one of the `hosts` asked, if a second has passed since the last time.

        A thread of its own asks. The caller waits for the answer only as long as one takes that comes at once, and not at all
        where the last one was slow: the master works perhaps, and it is the others that hang.
        """
        if time.monotonic() < self._look_at or not self._lock.acquire(blocking=False):
            return
        try:
            if self._looker is not None and self._looker.is_alive():
                return
            self._look_at = time.monotonic() + LOOK_S
            place, self._next = hosts[self._next % len(hosts)], self._next + 1
            name = f"celery-redis-plus-{question.purpose}"
            looker = self._looker = threading.Thread(target=self._look, args=(question, place), name=name, daemon=True)
            try:
                looker.start()
            except RuntimeError as error:  # the interpreter ends, or there are too many threads
                self._looker = None
                logger.debug("no Sentinel or node is asked for the %s: %s", question.wanted, error)
                return
        finally:
            self._lock.release()
        if place not in self._slow:
            looker.join(LOOK_WAIT_S)
            if looker.is_alive():
                self._slow.add(place)

    def _look(self, question: Question, place: tuple[str, int]) -> None:
        try:
            with self.timed(place):
                fetched = self.inquiry.fetch_again(question, *place)
        except (NoAnswer, CeleryRedisPlusError, RedisError, OSError) as error:
            logger.debug("%s does not name the %s: %s", server_text(*place), question.wanted, error)
            return
        for finder in list(self._finders):
            finder.learn(fetched, place[0], place)


#: Those of this process, by address, user and options without what differs between shards.
_looks: weakref.WeakValueDictionary[tuple[object, ...], MasterLooks] = weakref.WeakValueDictionary()


def looks_for(key: tuple[object, ...], inquiry: MasterInquiry) -> MasterLooks:
    """Return the looks that all finders of this process with the same `key` share."""
    looks = _looks.get(key)
    if looks is None:
        # Two threads may make one each, which does no harm.
        looks = _looks[key] = MasterLooks(inquiry)
    return looks
