"""Which server Sentinels, or the nodes of a cluster, name as the master: asked for each new connection, and once a second.

A master that is replaced on command goes on for about ten seconds before a Sentinel makes it a replica (`sentinel.c`:
SENTINEL_PUBLISH_PERIOD * 4, then the next INFO), and what it takes meanwhile is lost. So connections to it are left sooner.
An owner of a slot says by itself that it is none any more, unless its machine is gone without a word.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from celery_redis_plus.connection.host_lists import server_text, servers_text
from celery_redis_plus.connection.master_question import Master, NoAnswer
from celery_redis_plus.errors import CeleryRedisPlusError, InvalidAddress

if TYPE_CHECKING:
    from celery_redis_plus.connection.master_looks import MasterLooks
    from celery_redis_plus.connection.master_question import Question

logger = logging.getLogger(__name__)


class Wakes(Protocol):
    """What ends the wait of an event loop."""

    def wake(self) -> None:
        """End it."""


class MasterFinder:
    """Asks for the master of one address, for all connections of this process. Thread-safe."""

    def __init__(self, question: Question, looks: MasterLooks) -> None:
        """Ask `question`, and share the looks with others who ask the same servers."""
        self.question = question
        #: Asks, and keeps connections from one look to the next.
        self.looks = looks
        #: Who is asked: those of the address, and behind them those that answers have named.
        self._hosts = question.hosts
        #: The master of the newest configuration that this process knows of.
        self.master: Master | None = None
        #: The place of the one that is asked first: the last one that had a good answer.
        self._first = 0
        self._wakers: weakref.WeakSet[Wakes] = weakref.WeakSet()
        looks.serve(self)

    def answers(self) -> Iterator[tuple[str, Master | Exception]]:
        """Ask one after another; yield where it is, and its answer. A caller that is content stops.

        Raises:
            InvalidAddress: none of them can be asked: a TLS file is missing.
        """
        hosts, first = self._hosts, self._first
        in_turn = (*hosts[first:], *hosts[:first])
        for host, port in sorted(in_turn, key=self.looks.is_slow):
            answer: Master | Exception
            try:
                found = self.looks.ask(self.question, (host, port))
            except InvalidAddress:
                raise
            except (NoAnswer, CeleryRedisPlusError, RedisError, OSError) as error:
                answer = error
            else:
                answer = found
                if not self.is_outdated(found):
                    self._first = hosts.index((host, port))
            yield server_text(host, port), answer

    def is_outdated(self, answer: Master) -> bool:
        """Return whether the answer is of an older configuration than the one known: who gave it is cut off from the others."""
        known = self.master
        if known is None or answer.epoch is None or answer.is_at(known.host, known.port):
            return False
        return known.is_newer_than(answer)

    def is_majority(self, count: int) -> bool:
        """Return whether so many answers are those of most that are asked."""
        return count > len(self._hosts) // 2

    def opened(self, master: Master) -> None:
        """Note the master to which a connection was opened: it has said that it is one."""
        known = self.master
        if known is not None and not known.is_at(master.host, master.port):
            servers = servers_text(self.question.hosts)
            logger.info("%ss %s: the %s is now %s", self.question.asked.capitalize(), servers, self.question.wanted, master)
        elif known is not None and known.is_newer_than(master):
            master = known
        self._note(master)
        self.looks.note_answer()

    def _note(self, master: Master) -> None:
        """Keep an answer, and whom else it names that can be asked: the address may name servers that are gone by now."""
        self.master = master
        if master.nodes:
            self._hosts = tuple(dict.fromkeys((*self.question.hosts, *master.nodes)))

    def wake_on_move(self, waker: Wakes) -> None:
        """Wake an event loop when the master moves: its connections to the old one are idle perhaps."""
        self._wakers.add(waker)

    @property
    def ownership(self) -> str:
        """What tells two times apart at which one server was the owner of a slot, without a promotion; empty with Sentinels."""
        return f" {self.master.epoch}" if self.question.moves and self.master is not None else ""

    def has_moved(self, host: str, port: int) -> bool:
        """Return whether the master is another one than the server at `host` and `port`, as far as this process knows."""
        return self.master is not None and not self.master.is_at(host, port)

    def look(self) -> None:
        """Have somebody asked whether the master is the one that is known, if a second has passed since the last time."""
        self.looks.look(self.question, self._hosts)

    @property
    def next_look_at(self) -> float:
        """When somebody is asked next, on the monotonic clock, in seconds: each look moves it on."""
        return self.looks.next_at

    def learn(self, fetched: Any, host: str, place: tuple[str, int]) -> None:
        """Take what the server at `place`, on `host`, has answered to a look.

        Only an answer of a newer configuration counts: one that is cut off from the others names the old master.
        """
        try:
            found = self.question.read_answer(fetched, host)
        except NoAnswer as error:
            logger.debug("%s does not name the %s: %s", server_text(*place), self.question.wanted, error)
            return
        known = self.master
        if known is None or found.is_newer_than(known):
            self._note(found)
            self._first = self._hosts.index(place) if place in self._hosts else 0
            if known is not None and not found.is_at(known.host, known.port):
                for waker in list(self._wakers):
                    waker.wake()


#: The finders of this process, by address, user and options.
_finders: weakref.WeakValueDictionary[tuple[object, ...], MasterFinder] = weakref.WeakValueDictionary()


def finder_for(key: tuple[object, ...], question: Question, looks: MasterLooks) -> MasterFinder:
    """Return the finder that all connectors of this process with the same `key` share."""
    finder = _finders.get(key)
    if finder is None:
        # Two threads may make one each, which does no harm.
        finder = _finders[key] = MasterFinder(question, looks)
    return finder
