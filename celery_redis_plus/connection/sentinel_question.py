"""The question for the master: what one Sentinel answers, and whether a server says of itself that it is one.

Source: "Guidelines for Redis clients with support for Redis Sentinel" (redis.io/docs/latest/develop/reference/sentinel-clients).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus.connection.master_question import Master, NoAnswer, number_of, text_of
from celery_redis_plus.errors import ReadOnlyReplica

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.sentinel_address import Sentinels

logger = logging.getLogger(__name__)

#: Seconds that a Sentinel may take for each answer, unless `sentinel_kwargs` say otherwise.
ANSWER_S = 1.0


class SentinelQuestion:
    """Asks the Sentinels of an address for the master of their name."""

    purpose = "sentinel"
    asked = "Sentinel"
    remedy = "check master_name, the Sentinels in broker_url, and that enough of them run for a failover"
    moves = False

    def __init__(self, sentinels: Sentinels) -> None:
        """Ask `sentinels`."""
        self._sentinels = sentinels
        self.hosts = sentinels.hosts
        self.wanted = f"master {sentinels.master_name!r}"
        self.timeout_s: float | None = sentinels.timeout_s or ANSWER_S

    def address(self, of: Address, host: str, port: int) -> Address:
        """Return where to ask a Sentinel: users and TLS are its own."""
        sentinels = self._sentinels
        return replace(
            of,
            host=host,
            port=port,
            db=0,
            username=sentinels.username,
            password=sentinels.password,
            credential_provider=sentinels.credential_provider,
            tls=sentinels.tls,
            sentinels=None,
        )

    def fetch(self, connection: AbstractConnection, _: str) -> Master:
        """Return the master that the Sentinel behind `connection` names.

        GET-MASTER-ADDR-BY-NAME tells of a promotion before MASTER does, which tells the state: a master that does not answer the
        Sentinel is not worth a try, unless its successor is named already.

        Raises:
            NoAnswer: it knows no such master, or none that is up; or it knows too few other Sentinels; or it is no Sentinel.
            redis.exceptions.RedisError, OSError: the connection failed.
        """
        sentinels = self._sentinels
        name = sentinels.master_name
        master = _named(connection, name)
        try:
            reply = _call(connection, "MASTER", name)
        except NoAnswer as refusal:
            # An ACL of the Sentinel may permit the first question only.
            if sentinels.min_other_sentinels:
                raise
            logger.debug("a Sentinel does not tell the state of master %r: %s", name, refusal)
            return master
        if not isinstance(reply, list):
            raise NoAnswer(f"its answer cannot be read: {reply!r}")
        state = {text_of(key): text_of(value) for key, value in zip(reply[::2], reply[1::2], strict=False)}
        others = number_of("num-other-sentinels", state.get("num-other-sentinels", 0))
        if others < sentinels.min_other_sentinels:
            raise NoAnswer(f"it knows {others} other Sentinels; min_other_sentinels is {sentinels.min_other_sentinels}")
        epoch = number_of("config-epoch", state.get("config-epoch", 0))
        if (state.get("ip"), state.get("port")) != (master.host, str(master.port)):
            # It leads the failover: until all replicas follow the new master, the state is the old one's, but for the epoch
            # (`sentinel.c`, sentinelRefreshInstanceInfo). Or the first answer is older than the state: so it is asked again.
            return replace(_named(connection, name), epoch=epoch)
        flags = state.get("flags", "").split(",")
        if "s_down" in flags or "o_down" in flags:
            raise NoAnswer(f"master {name!r} ({master.host}:{master.port}) does not answer it, and has no successor yet")
        return replace(master, epoch=epoch)

    def read_answer(self, fetched: Master, _: str) -> Master:
        """Return what `fetch` has."""
        return fetched

    def check(self, connection: AbstractConnection, address: Address) -> None:
        """Ask the server for its role.

        Raises:
            ReadOnlyReplica: it is no master.
        """
        connection.send_command("ROLE")
        try:
            reply: Any = connection.read_response(disable_decoding=True)
        except ResponseError as error:  # no permission, or a renamed command
            logger.debug("%s: cannot see that the server is a master, ROLE is refused: %s", address.display(), error)
            return
        role = text_of(reply[0])
        if role != "master":
            raise ReadOnlyReplica(f"{address.display()}: the server says that it is a {role}. What to do: wait for the promotion")


def _named(connection: AbstractConnection, name: str) -> Master:
    """Return the address of the master. Raises NoAnswer where there is none that could be used."""
    address = _call(connection, "GET-MASTER-ADDR-BY-NAME", name)
    if not isinstance(address, list) or len(address) != 2:
        raise NoAnswer(f"it watches no master named {name!r}", unknown=True)
    master = Master(text_of(address[0]), number_of("port", address[1]))
    if not master.host or not 0 < master.port < 65536:
        raise NoAnswer(f"it names a server that cannot be: host {master.host!r}, port {master.port}")
    return master


def _call(connection: AbstractConnection, question: str, name: str) -> Any:
    connection.send_command("SENTINEL", question, name)
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        text = str(error)
        if "unknown command" in text.lower():
            raise NoAnswer(f"it is no Sentinel ({text})") from error
        raise NoAnswer(text, unknown="No such master" in text) from error
