"""Queues that another broker has: what takes dead messages there, for whom composes several brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.broker.dead_letters.store import Move
    from celery_redis_plus.broker.exchanges.routing import RoutingTable


class Elsewhere(Protocol):
    """The other brokers. Methods raise redis-py's errors, and OSError, where one of them cannot be reached."""

    def concerns(self, queues: Sequence[str], /) -> bool:
        """Return whether any of the queues is in another broker."""

    def refresh(self, exchange: str, /) -> Sequence[RoutingTable]:
        """Read the bindings of an exchange in the other brokers."""

    def move(self, move: Move, source: bytes, counter: str, /) -> int:
        """Move a message from the set `source`, at least once; return how many queues took it, ALREADY_GONE, or NO_TARGET."""

    def close(self) -> None:
        """Close the connections to other brokers; the next use opens new ones."""


class NowhereElse:
    """There is no other broker."""

    def concerns(self, _: Sequence[str]) -> bool:
        """Return False."""
        return False

    def refresh(self, _: str) -> Sequence[RoutingTable]:
        """Return nothing."""
        return ()

    def move(self, *_: object) -> int:
        """Fail: no queue is elsewhere."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""


#: What a broker by itself has.
NOWHERE_ELSE = NowhereElse()
