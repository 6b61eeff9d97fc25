"""What can be asked for the master of an address, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from celery_redis_plus.connection.host_lists import server_text

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from celery_redis_plus.connection.address import Address


@dataclass(frozen=True, slots=True)
class Master:
    """A master, as a Sentinel or a node of a cluster names it.

    `epoch` counts the failovers: a greater one is newer. None: the answer does not tell it. `nodes` can be asked as well.
    """

    host: str
    port: int
    epoch: int | None = None
    nodes: tuple[tuple[str, int], ...] = ()

    def is_at(self, host: str, port: int) -> bool:
        """Return whether it is the server there."""
        return (self.host, self.port) == (host, port)

    def is_newer_than(self, known: Master) -> bool:
        """Return whether this is the answer of one that knows more than `known`."""
        if self.epoch is None:
            return False
        return known.epoch is None or self.epoch > known.epoch

    def __str__(self) -> str:
        return server_text(self.host, self.port)


class NoAnswer(Exception):  # noqa: N818 - an answer, too
    """No master that could be used is named; the text says why."""

    def __init__(self, text: str, *, unknown: bool = False) -> None:
        super().__init__(text)
        #: The question makes no sense there: waiting does not help.
        self.unknown = unknown


class Question(Protocol):
    """The question for the master of one address."""

    #: What a connection for it is for, in one word.
    purpose: str
    #: Of whom it is asked, and for what, in messages: "Sentinel", "master 'mymaster'".
    asked: str
    wanted: str
    #: What to check where no answer is good.
    remedy: str
    #: Seconds that an answer may take; None: as long as any connection may take.
    timeout_s: float | None
    #: Whether a server may cease to be the master, and become it again, without a promotion.
    moves: bool

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """Who is asked."""

    def address(self, of: Address, host: str, port: int) -> Address:
        """Return where to ask one of them, and as which user, for the master of the address `of`."""

    def fetch(self, connection: AbstractConnection, host: str) -> Any:
        """Return what the server behind `connection`, on `host`, says of all masters that it knows of.

        Raises:
            NoAnswer: it says nothing that could be used.
            redis.exceptions.RedisError, OSError: the connection failed.
        """

    def read_answer(self, fetched: Any, host: str) -> Master:
        """Return the master that is wanted. Raises NoAnswer where none is named that could be used."""

    def check(self, connection: AbstractConnection, address: Address) -> None:
        """See that the server behind a new connection is the master: an answer may be out of date.

        Raises:
            redis.exceptions.RedisError: it is not; as this package has it, or as the server says it.
        """


def text_of(value: Any) -> str:
    """Return a text in an answer."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def number_of(name: str, value: Any) -> int:
    """Return a number in an answer. Raises NoAnswer where it is none."""
    text = text_of(value)
    if not text.isascii() or not text.isdigit():
        raise NoAnswer(f"its answer cannot be read: {name} {text[:40]!r}")
    return int(text)
