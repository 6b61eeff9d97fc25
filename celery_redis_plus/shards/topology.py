"""What a connection has declared, for the shards that are connected to later, or again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redis_plus.broker.exchanges.routing import RoutingTable
    from celery_redis_plus.transport.channel import Channel

#: Queues, and exchanges, that are remembered; the oldest are forgotten. A process may declare any number of reply queues.
MOST_KNOWN: Final = 10_000


@dataclass(slots=True)
class DeclaredQueue:
    """A queue as it was declared, and what it was bound to: (exchange, routing key, arguments)."""

    declaration: Mapping[str, Any]
    bindings: list[tuple[str, str, Any]] = field(default_factory=list)
    #: Bound to a fanout exchange: it is declared, bound and consumed on every shard.
    broadcast: bool = False
    #: The shard that it is on although another one is its own, which was down.
    placed: int | None = None

    @property
    def is_transient(self) -> bool:
        """Whether it goes with its connection or its consumer, so that its name says nothing about its shard."""
        return bool(self.declaration.get("exclusive") or self.declaration.get("auto_delete"))


class Topology:
    """The exchanges and queues that one connection has declared."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.exchanges: dict[str, Mapping[str, Any]] = {}
        self.queues: dict[str, DeclaredQueue] = {}
        #: (shard, exchange) -> the bindings as they were read last.
        self._tables: dict[tuple[int, str], RoutingTable] = {}

    def note_table(self, number: int, exchange: str, table: RoutingTable | None) -> None:
        """Remember the bindings of an exchange on a shard, for when that is down."""
        if table is not None:
            self._tables[number, exchange] = table

    def table(self, number: int, exchange: str) -> RoutingTable | None:
        """Return the bindings of an exchange on a shard as they were read last; None where they were not."""
        return self._tables.get((number, exchange))

    def note_exchange(self, name: str, declaration: Mapping[str, Any]) -> None:
        """Remember an exchange."""
        self.exchanges.pop(name, None)
        self.exchanges[name] = declaration
        if len(self.exchanges) > MOST_KNOWN:
            del self.exchanges[next(iter(self.exchanges))]

    def note_queue(self, name: str, declaration: Mapping[str, Any]) -> DeclaredQueue:
        """Remember a queue; what it was bound to stays known."""
        known = self.queues.pop(name, None)
        if known is None:
            known = DeclaredQueue(declaration)
        else:
            known.declaration = declaration
        self.queues[name] = known
        if len(self.queues) > MOST_KNOWN:
            del self.queues[next(iter(self.queues))]
        return known

    def declare(self, queue: str, channel: Channel) -> None:
        """Declare a queue, its exchanges and its bindings on one shard, as far as they are known."""
        known = self.queues.get(queue)
        if known is None:
            return
        channel.queue_declare(queue, **known.declaration)
        for exchange, routing_key, arguments in known.bindings:
            self.declare_exchange(exchange, channel)
            channel.queue_bind(queue, exchange, routing_key, arguments)

    def declare_exchange(self, name: str, channel: Channel) -> None:
        """Declare an exchange on one shard, if it is known here."""
        if name in self.exchanges:
            channel.exchange_declare(name, **self.exchanges[name])
