"""Connections to a master that Sentinels, or the nodes of a cluster, name. Loaded where an address has them."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_redis_plus.connection.cluster_question import ClusterQuestion
from celery_redis_plus.connection.master_finder import finder_for
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
    from collections.abc import Callable

    from redis.connection import Connection

    from celery_redis_plus.connection.address import Address
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
