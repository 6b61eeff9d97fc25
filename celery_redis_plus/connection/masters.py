"""The masters that Sentinels, or the nodes of a cluster, name, and connections to them. Loaded where an address has them.

They are asked for each new connection, and once a second. A master that is replaced on command goes on for about ten seconds
before a Sentinel makes it a replica (`sentinel.c`: SENTINEL_PUBLISH_PERIOD * 4, then the next INFO), and what it takes meanwhile
is lost. So connections to it are left sooner. An owner of a slot says by itself that it is none any more, unless its machine is
gone without a word.
"""

from __future__ import annotations

import logging
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from celery_redis_plus.connection.cluster_question import ClusterQuestion
from celery_redis_plus.connection.host_lists import server_text, servers_text
from celery_redis_plus.connection.master_looks import looks_for
from celery_redis_plus.connection.master_question import Master, NoAnswer
from celery_redis_plus.connection.sentinel_question import SentinelQuestion
from celery_redis_plus.errors import (
    AuthenticationFailed,
    CeleryRedisPlusError,
    InvalidAddress,
    MasterNotFound,
    NoPermission,
    NotRedis,
    ReadOnlyReplica,
    ServerLoading,
    ServerTimeout,
    ServerTooOld,
    ServerUnreachable,
    SlotUnavailable,
    TlsFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.connection import Connection

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.master_looks import MasterLooks
    from celery_redis_plus.connection.master_question import Question
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Seconds between two rounds of questions while no Sentinel names a master that takes connections.
ASK_AGAIN_S = 0.1


class MasterConnections:
    """Opens connections to whichever server is the master now.

    Attributes:
        finder: asks the Sentinels, or the nodes of a cluster.
    """

    def __init__(
        self,
        address: Address,
        options: Options,
        *,
        connect: Callable[[Address, str, float | None], Connection],
        connect_to_ask: Callable[..., Connection],
    ) -> None:
        """Find the master of `address`.

        Args:
            address: that of Sentinels, or of a cluster.
            options: the transport options.
            connect: opens a connection to one server that can store messages: its address, the purpose, the patience in seconds.
            connect_to_ask: opens one to a Sentinel or node: its address, the question.
        """
        question: Question | None = None
        if address.cluster is not None:
            question = ClusterQuestion(address.cluster)
        elif address.sentinels is not None:
            question = SentinelQuestion(address.sentinels)
        if question is None:
            raise ValueError(f"{address.display()} names neither Sentinels nor a cluster")
        self._address = address
        self._connect = connect
        # Shards differ by their prefixes alone.
        cluster = None if address.cluster is None else address.cluster._replace(prefix="")
        looks = looks_for((replace(address, cluster=cluster), replace(options, global_keyprefix="")), address, connect_to_ask)
        self.finder = finder_for((address, options), question, looks)

    def open(self, purpose: str, patience_s: float | None) -> Connection:
        """Ask until somebody names a master that takes the connection, as long as a connection may take."""
        deadline = time.monotonic() + (patience_s or 0.0)
        while True:
            is_last = time.monotonic() + ASK_AGAIN_S > deadline
            try:
                return self._open_once(purpose, patience_s, is_last=is_last)
            except MasterNotFound as error:
                if error.unknown or is_last:
                    raise
                logger.debug("%s", error)
            time.sleep(ASK_AGAIN_S)

    def _open_once(self, purpose: str, patience_s: float | None, *, is_last: bool) -> Connection:
        """Ask each Sentinel or node once. Raises MasterNotFound, or what the masters that are named answer.

        In the last round an answer older than what is known counts, too, if most of them agree on it: they were set up anew, and
        count from zero.
        """
        finder = self.finder
        answers: list[str] = []
        refusal: Exception | None = None
        older: list[Master] = []
        tried: set[str] = set()
        given: list[Master | Exception] = []
        for asked, answer in finder.answers():
            given.append(answer)
            if not isinstance(answer, Master):
                if finder.question.moves and isinstance(answer, AuthenticationFailed):
                    # Nodes are asked as the user whose the broker is.
                    refusal = refusal or answer
                answers.append(f"{asked}: {answer}")
                continue
            if finder.is_outdated(answer):
                older.append(answer)
                if not is_last or not finder.is_majority(older.count(answer)):
                    answers.append(f"{asked} names {answer}: another {finder.question.asked} has named a newer one")
                    continue
            address = self._address.at_master(answer.host, answer.port)
            if address.server in tried:
                continue
            tried.add(address.server)
            try:
                connection = self._connect(address, purpose, patience_s)
            except (ServerUnreachable, ServerTimeout, ServerLoading, ReadOnlyReplica, SlotUnavailable) as error:
                answers.append(f"{asked} names {answer}: {error}")
                continue
            except (AuthenticationFailed, NoPermission, NotRedis, ServerTooOld, InvalidAddress) as error:
                # Perhaps the wrong server: the next one may name another one.
                refusal = refusal or error
                answers.append(f"{asked} names {answer}: {error}")
                continue
            finder.opened(answer)
            return connection
        if refusal is not None:
            raise refusal
        raise _no_master(
            given,
            f"{self._address.display()}: no {finder.question.asked} names the {finder.question.wanted} that takes connections. "
            f"Asked: {'; '.join(answers)}. What to do: {finder.question.remedy}",
        )


def _no_master(answers: list[Master | Exception], description: str) -> CeleryRedisPlusError:
    """Return the error of a round of answers that led to no master."""
    tls = [answer for answer in answers if isinstance(answer, TlsFailed)]
    if len(tls) == len(answers):
        # Not a matter of masters: all of them are asked in a way that will fail the next time, too.
        return tls[0]
    unknown = all(isinstance(answer, NoAnswer) and answer.unknown for answer in answers)
    return MasterNotFound(description, unknown=unknown)


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
