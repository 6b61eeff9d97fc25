"""The question for the master: what one Sentinel answers, and whether a server says of itself that it is one.

Source: "Guidelines for Redis clients with support for Redis Sentinel" (redis.io/docs/latest/develop/reference/sentinel-clients).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus.connection.sentinel_address import server_text
from celery_redis_plus.errors import ReadOnlyReplica

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.sentinel_address import Sentinels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Master:
    """A master, as a Sentinel names it.

    `epoch` counts the failovers: a greater one is newer. None: the Sentinel does not tell it.
    """

    host: str
    port: int
    epoch: int | None = None

    def is_at(self, host: str, port: int) -> bool:
        """Return whether it is the server there."""
        return (self.host, self.port) == (host, port)

    def is_newer_than(self, known: Master) -> bool:
        """Return whether this is what a Sentinel says that knows more than `known`."""
        if self.epoch is None:
            return False
        return known.epoch is None or self.epoch > known.epoch

    def __str__(self) -> str:
        return server_text(self.host, self.port)


class NoAnswer(Exception):  # noqa: N818 - an answer, too
    """A Sentinel names no master that could be used; the text says why."""

    def __init__(self, text: str, *, unknown: bool = False) -> None:
        super().__init__(text)
        #: The Sentinel watches no master of this name: waiting does not help.
        self.unknown = unknown


def ask(connection: AbstractConnection, sentinels: Sentinels) -> Master:
    """Return the master that the Sentinel behind `connection` names.

    GET-MASTER-ADDR-BY-NAME tells of a promotion before MASTER does, which tells the state: a master that does not answer the
    Sentinel is not worth a try, unless its successor is named already.

    Raises:
        NoAnswer: it knows no such master, or none that is up; or it knows too few other Sentinels; or it is no Sentinel.
        redis.exceptions.RedisError, OSError: the connection failed.
    """
    name = sentinels.master_name
    address = _call(connection, "GET-MASTER-ADDR-BY-NAME", name)
    if not isinstance(address, list) or len(address) != 2:
        raise NoAnswer(f"it watches no master named {name!r}", unknown=True)
    master = Master(_text(address[0]), _number("port", address[1]))
    if not master.host or not 0 < master.port < 65536:
        raise NoAnswer(f"it names a server that cannot be: host {master.host!r}, port {master.port}")
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
    state = {_text(key): _text(value) for key, value in zip(reply[::2], reply[1::2], strict=False)}
    others = _number("num-other-sentinels", state.get("num-other-sentinels", 0))
    if others < sentinels.min_other_sentinels:
        raise NoAnswer(f"it knows {others} other Sentinels; min_other_sentinels is {sentinels.min_other_sentinels}")
    flags = state.get("flags", "").split(",")
    is_old = (state.get("ip"), state.get("port")) != (master.host, str(master.port))
    if not is_old and ("s_down" in flags or "o_down" in flags):
        raise NoAnswer(f"master {name!r} ({master.host}:{master.port}) does not answer it, and has no successor yet")
    epoch = _number("config-epoch", state.get("config-epoch", 0))
    # The state is the old master's yet, whose successor has a greater number: one more at the least.
    return Master(master.host, master.port, epoch + 1 if is_old else epoch)


def check_role(connection: AbstractConnection, address: Address) -> None:
    """See that the server behind a new connection is a master: a Sentinel's answer may be out of date.

    Raises:
        ReadOnlyReplica: it is not.
    """
    connection.send_command("ROLE")
    try:
        reply: Any = connection.read_response(disable_decoding=True)
    except ResponseError as error:  # no permission, or a renamed command
        logger.debug("%s: cannot see that the server is a master, ROLE is refused: %s", address.display(), error)
        return
    role = _text(reply[0])
    if role != "master":
        raise ReadOnlyReplica(f"{address.display()}: the server says that it is a {role}. What to do: wait for the promotion")


def _call(connection: AbstractConnection, question: str, name: str) -> Any:
    connection.send_command("SENTINEL", question, name)
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        text = str(error)
        if "unknown command" in text.lower():
            raise NoAnswer(f"it is no Sentinel ({text})") from error
        raise NoAnswer(text, unknown="No such master" in text) from error


def _number(name: str, value: Any) -> int:
    text = _text(value)
    if not text.isascii() or not text.isdigit():
        raise NoAnswer(f"its answer cannot be read: {name} {text[:40]!r}")
    return int(text)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
