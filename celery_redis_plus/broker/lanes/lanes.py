"""The lanes of a broker, as one of them sees the others: for what concerns queues of several lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.lanes import lane_of
from celery_redis_plus.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redis_plus.broker.exchanges.routing import RoutingTable
    from celery_redis_plus.options import Options


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A lane of a broker, over one connection."""

    commands: CommandConnection
    keys: Keys
    queues: Queues
    bindings: Bindings


class Lanes:
    """All lanes of a broker. Those other than our own are connected to when they are needed."""

    def __init__(self, own: Lane, own_number: int, count: int, make: Callable[[int], Lane]) -> None:
        """Begin with `own`, the lane `own_number` of `count`; `make` connects to another one by its number."""
        self.own = own
        self.own_number = own_number
        self._count = count
        self._make = make
        self._lanes = {own_number: own}

    def of(self, queue: str) -> Lane:
        """Return the lane of a queue."""
        return self._lane(lane_of(queue, self._count))

    def all(self) -> Iterator[Lane]:
        """Yield all lanes."""
        return map(self._lane, range(self._count))

    def _lane(self, number: int) -> Lane:
        if number not in self._lanes:
            self._lanes[number] = self._make(number)
        return self._lanes[number]

    def refresh(self, exchange: str) -> LaneRoutes:
        """Read the bindings of an exchange in all lanes. Raises as `Bindings.refresh` does."""
        return LaneRoutes([lane.bindings.refresh(exchange) for lane in self.all()])

    def close(self) -> None:
        """Close the connections to other lanes; the next use opens new ones."""
        for number, lane in self._lanes.items():
            if number != self.own_number:
                lane.commands.close()


class LaneRoutes:
    """The bindings of an exchange in all lanes."""

    def __init__(self, tables: Sequence[RoutingTable]) -> None:
        self._tables = tables

    def route(self, routing_key: str, headers: Mapping[str, object] | None = None) -> tuple[str, ...]:
        """Return the queues that a message goes to."""
        return tuple(queue for table in self._tables for queue in table.route(routing_key, headers))


def connect_lanes(own: Lane, connector: Connector, prefixes: Sequence[str]) -> Lanes:
    """Return the lanes with the key `prefixes`, of which `own` is over `connector`."""
    options = connector.options
    connectors: dict[int, Connector] = {}

    def make(number: int) -> Lane:
        if number not in connectors:
            connectors[number] = Connector(connector.address, replace(options, global_keyprefix=prefixes[number]))
        return lane_over(CommandConnection(connectors[number], "lanes", timeout=options.socket_timeout), options)

    return Lanes(own, own_lane(connector, prefixes), len(prefixes), make)


def own_lane(connector: Connector, prefixes: Sequence[str]) -> int:
    """Return the number of the lane that `connector` leads to; that of a cluster has given the first prefix a hash tag."""
    return prefixes.index(connector.options.global_keyprefix) if connector.options.global_keyprefix in prefixes else 0


def lane_over(commands: CommandConnection, options: Options) -> Lane:
    """Return a lane over a connection to it."""
    keys = Keys(commands.connector.options.global_keyprefix)
    knowledge = DeclaredTopology(options.cluster_lanes)
    queues = Queues(commands, keys, transient_ttl_s=options.transient_queue_ttl, knowledge=knowledge)
    return Lane(commands, keys, queues, Bindings(commands, keys, knowledge))
