"""Asks Sentinels, or nodes of a cluster, for the masters of a process, and once a second whether these have moved.

A process with several shards has a master, and a finder, for each. The same nodes of a cluster, or the same Sentinels, know all:
one look serves all brokers. Its connections stay open from one look to the next. A new one with TLS costs 24 ms of CPU, 20 of
them for reading the system's authorities (redis-py makes a context for each): an idle worker spent 3 % of a core on them.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.host_lists import server_text
from celery_redis_plus.connection.master_question import NoAnswer
from celery_redis_plus.error_translation import translate
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.connection import Connection

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.master_question import Master, Question

logger = logging.getLogger(__name__)

#: Seconds between two looks whether the master has changed.
LOOK_S = 1.0
#: Seconds that a caller waits for the answer to a look, which takes 1 ms.
LOOK_WAIT_S = 0.05

Place = tuple[str, int]


class Learns(Protocol):
    """A finder."""

    def learn(self, fetched: Any, host: str, place: Place) -> None:
        """Take what the server at `place`, on `host`, has answered."""


class MasterLooks:
    """What all finders share that ask the same servers in the same way. Thread-safe; a forked child has its own connections."""

    def __init__(self, of: Address, connect: Callable[[Address, Question], Connection]) -> None:
        """Ask as the user of the address `of`, over connections that `connect` opens."""
        self._of = of
        self._connect = connect
        self._finders: weakref.WeakSet[Learns] = weakref.WeakSet()
        #: The place of the one that is asked by the next look: each look asks another one.
        self._next = 0
        #: Those whose last answer came late, or not at all: a machine without power refuses nothing.
        self._slow: set[Place] = set()
        #: When somebody is asked next, on the monotonic clock, in seconds.
        self.next_at = 0.0
        self._looker: threading.Thread | None = None
        self._lock = forks.lock_of(self)
        #: Connections that are kept for the next look, and what has a connection to the master: without any, none is kept.
        self._kept: dict[Place, Connection] = {}
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        forks.on_fork_in_child(self)

    def serve(self, finder: Learns) -> None:
        """Let a finder learn of the answers to looks."""
        self._finders.add(finder)

    def join(self, user: object) -> None:
        """Keep connections from now on: `user` has one to the master."""
        self._users.add(user)

    def leave(self, user: object) -> None:
        """Close them where `user` was the last one that had a connection to the master."""
        self._users.discard(user)
        self._close_unused()

    def forked(self) -> None:
        """Let go of the parent's connections. redis-py closes the descriptors, and sends nothing in another process."""
        self._users = weakref.WeakSet()
        self._close_unused()

    def note_answer(self) -> None:
        """Note that the only finder has just heard who the master is."""
        if len(self._finders) == 1:
            self.next_at = time.monotonic() + LOOK_S

    def is_slow(self, place: Place) -> bool:
        """Return whether the last answer of the server at `place` came late, or not at all: all finders ask slow ones last."""
        return place in self._slow

    def ask(self, question: Question, place: Place) -> Master:
        """Return what the server at `place` answers over a connection of its own.

        Raises:
            NoAnswer: it names none that could be used.
            redis.exceptions.RedisError, OSError: the connection failed; as this package has it.
        """
        began = time.monotonic()
        try:
            connection = self._open(question, place)
            try:
                return question.read_answer(self._fetch(connection, question, place), place[0])
            finally:
                _close(connection)
        finally:
            self._note_time(place, began)

    def look(self, question: Question, hosts: tuple[Place, ...]) -> None:
        """Have one of the `hosts` asked, if a second has passed since the last time.

        A thread of its own asks. The caller waits for the answer only as long as one takes that comes at once, and not at all
        where the last one was slow: the master works perhaps, and it is the others that hang.
        """
        if time.monotonic() < self.next_at or not self._lock.acquire(blocking=False):
            return
        try:
            if self._looker is not None and self._looker.is_alive():
                return
            self.next_at = time.monotonic() + LOOK_S
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

    def _look(self, question: Question, place: Place) -> None:
        began = time.monotonic()
        try:
            fetched = self._fetch_again(question, place)
        except (NoAnswer, CeleryRedisPlusError, RedisError, OSError) as error:
            logger.debug("%s does not name the %s: %s", server_text(*place), question.wanted, error)
            return
        finally:
            self._note_time(place, began)
        for finder in list(self._finders):
            finder.learn(fetched, place[0], place)

    def _note_time(self, place: Place, began: float) -> None:
        if time.monotonic() - began > LOOK_WAIT_S:
            self._slow.add(place)
        else:
            self._slow.discard(place)

    def _fetch_again(self, question: Question, place: Place) -> Any:
        """Return what a server says over a connection that stays open for the next time. Raises as `ask` does."""
        connection = self._kept.pop(place, None)
        if connection is not None:
            # The server may have closed it since; then a new connection decides.
            with suppress(RedisError, OSError):
                return self._fetch_and_keep(connection, question, place)
        return self._fetch_and_keep(self._open(question, place), question, place)

    def _fetch_and_keep(self, connection: Connection, question: Question, place: Place) -> Any:
        try:
            fetched = self._fetch(connection, question, place)
        except NoAnswer:
            self._keep(connection, place)
            raise
        except BaseException:
            _close(connection)
            raise
        self._keep(connection, place)
        return fetched

    def _keep(self, connection: Connection, place: Place) -> None:
        self._kept[place] = connection
        self._close_unused()

    def _open(self, question: Question, place: Place) -> Connection:
        return self._connect(question.address(self._of, *place), question)

    def _fetch(self, connection: Connection, question: Question, place: Place) -> Any:
        try:
            return question.fetch(connection, place[0])
        except NoAnswer:
            raise
        except Exception as exc:
            raise translate(exc, question.address(self._of, *place)) from exc

    def _close_unused(self) -> None:
        while self._kept and not self._users:
            with suppress(KeyError):
                _close(self._kept.popitem()[1])


def _close(connection: Connection) -> None:
    with suppress(Exception):
        connection.disconnect()


#: Those of this process, by address, user and options without what differs between shards.
_looks: weakref.WeakValueDictionary[tuple[object, ...], MasterLooks] = weakref.WeakValueDictionary()


def looks_for(key: tuple[object, ...], of: Address, connect: Callable[[Address, Question], Connection]) -> MasterLooks:
    """Return the looks that all finders of this process with the same `key` share; `of` and `connect` are as of `MasterLooks`."""
    looks = _looks.get(key)
    if looks is None:
        # Two threads may make one each, which does no harm.
        looks = _looks[key] = MasterLooks(of, connect)
    return looks
