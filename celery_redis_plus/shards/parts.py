"""The parts of a channel over several shards: a whole channel to each, opened when it is first needed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kombu.transport import virtual

from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import (
    ChannelClosed,
    ServerOutOfMemory,
    ServerUnavailable,
    ServerUnreachable,
    ShardsRaised,
    ShardUnreachable,
)
from celery_redis_plus.shards.credit import PartChannel, SharedQoS
from celery_redis_plus.shards.refusals import REFUSALS
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS
from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.compat import RedisClient
from celery_redis_plus.transport.returned_messages import ReturnsMessages

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Sizes
    from celery_redis_plus.options import Options
    from celery_redis_plus.shards.shard_state import ShardState
    from celery_redis_plus.shards.topology import Topology
    from celery_redis_plus.transport.api import Delivery
    from celery_redis_plus.transport.kombu_message import Message as DeliveredMessage

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that an operation on a queue waits for a shard whose connection was closed.
RECONNECT_S = 0.5


def rest_s(wait_s: float, began: float) -> float:
    """Return what is left of a wait for a shard since a moment of the monotonic clock: a node that hangs has taken a part of it.

    Enough, if anything was to be waited for, to hear of its successor.
    """
    return max(wait_s - (time.monotonic() - began), min(wait_s, RECONNECT_S))


class Shards(Protocol):
    """The connection to all shards, as far as its channels need it."""

    topology: Topology
    #: A queue or consumer of a shard that is down waits until it is back.
    defers: bool

    @property
    def options(self) -> Options:
        """The transport options that all shards have."""

    @property
    def numbers(self) -> range:
        """The numbers of all shards."""

    @property
    def delivery_loop(self) -> Any:
        """What serves the consumers."""

    def number_of(self, queue: str) -> int:
        """Return the number of the shard that has a queue."""

    def shard_state(self, number: int) -> ShardState:
        """Return what is known of a shard."""

    def open(self, number: int, wait_s: float = 0.0) -> Any:
        """Return the transport to a shard. Raises as `Shard.open`."""

    def live(self, first: int) -> Iterator[Any]:
        """Yield the transports to the shards that can be reached, that of the shard `first` before the others."""

    def stop(self, number: int, error: Exception) -> None:
        """Leave a shard that refuses what this process needs, until later. Raises `error` where no other shard is left."""

    def maintain(self) -> None:
        """Connect to all shards that can be reached."""

    def raised(self) -> Exception | None:
        """Return the error of a connection to fewer shards than there are by now; None where it is right."""

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection is usable."""

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message."""


class PartedChannel(ReturnsMessages, virtual.Channel):  # type: ignore[misc]
    """A channel of which each shard that it needs has a part."""

    supports_fanout = True
    do_restore = True
    max_priority = 255
    closed: bool
    qos: SharedQoS
    prepare_message = Channel.prepare_message

    def __init__(self, connection: Shards, **kwargs: Any) -> None:
        """Open a channel on `connection`, kombu's name for a transport."""
        self._transport = connection
        self._parts: dict[int, PartChannel] = {}
        self._begins_in_pool = False
        super().__init__(connection, **kwargs)
        # kombu's virtual channel encodes bodies to text; ours are bytes all the way.
        self.body_encoding = None

    @fork_safe_property
    def Message(self) -> type[DeliveredMessage]:  # noqa: N802 - kombu's name
        """The class of delivered messages."""
        from celery_redis_plus.transport.kombu_message import Message as Delivered

        return Delivered

    def QoS(self, _: Any) -> SharedQoS:  # noqa: N802 - kombu's name
        """Return the prefetch limit of all shards; kombu calls it once."""
        return SharedQoS(self, overfetch_factor=self._transport.options.overfetch_factor)

    def check_open(self) -> None:
        """Raise ServerUnreachable where the channel is closed with its connection, else ChannelClosed where it is closed."""
        if not self.closed:
            return
        if self._transport.verify_connection(None):
            raise ChannelClosed("the channel is closed; open a new one with connection.channel()")
        raise ServerUnreachable("the channel was closed with its connection")

    # -- its parts --------------------------------------------------------------------------------------------------------

    def part(self, number: int, wait_s: float = 0.0) -> PartChannel:
        """Return the channel to a shard. Raises as `Shard.open`, and ChannelError where this one is closed."""
        self.check_open()
        transport = self._transport.open(number, wait_s)
        part = self._parts.get(number)
        if part is None or part.closed or part.connection is not transport:
            part = self._parts[number] = PartChannel(transport, self.qos)
            transport.channels.append(part)
            if self._begins_in_pool:
                part.begin_in_pool()
        return part

    def of_queue(self, queue: str) -> PartChannel:
        """Return the channel to the shard that has a queue. Raises as `part` does, and as `check_queue_name`."""
        return self.part(self._transport.number_of(check_queue_name(queue)), RECONNECT_S)

    def of_broadcasts(self, exchange: str) -> PartChannel:
        """Return the channel over which broadcasts of a fanout exchange are published: to one shard, of which all hear."""
        return self._first_live(exchange)

    def live(self, name: str) -> Iterator[PartChannel]:
        """Yield the channels to the shards that can be reached, that to the own shard of a queue or exchange first."""
        for transport in self._transport.live(shard_of(name, len(self.numbers))):
            yield self.part(transport.number)

    def _first_live(self, name: str) -> PartChannel:
        for part in self.live(name):
            return part
        raise self.unreachable(name)

    def unreachable(self, name: str) -> ShardUnreachable:
        """Return the error of the own shard of a queue or exchange."""
        return self._transport.shard_state(shard_of(name, len(self.numbers))).unreachable()

    @property
    def options(self) -> Options:
        """The transport options that all shards have."""
        return self._transport.options

    def all_brokers(self) -> list[PartChannel]:
        """Return the channels to all shards. Raises ShardUnreachable where one is down: a part would be no answer."""
        return [self.part(number) for number in self._transport.numbers]

    def composed(self, deliveries: Sequence[Delivery]) -> Delivery:
        """Return the handle of a delivery, of which each shard has a part."""
        from celery_redis_plus.shards.delivery import ShardsDelivery

        return deliveries[0] if len(deliveries) == 1 else ShardsDelivery(deliveries)

    @property
    def brokers(self) -> tuple[PartChannel, ...]:
        """The channels to the shards that are open."""
        return tuple(part for part in list(self._parts.values()) if not part.closed and not part.session.broken)

    @property
    def numbers(self) -> range:
        """The numbers of all shards."""
        return self._transport.numbers

    @property
    def topology(self) -> Topology:
        """What the connection has declared."""
        return self._transport.topology

    def taken(self) -> int:
        """Return how many messages are claimed in all shards and not delivered, those included that may come yet."""
        return sum([part.taken() for part in self.brokers])

    def begin_in_pool(self) -> None:
        """Have a delivered task begin when the pool begins it, as `Channel.begin_in_pool`, over each shard."""
        self._begins_in_pool = True
        for part in self.brokers:
            part.begin_in_pool()

    @property
    def client(self) -> RedisClient:
        """What programs take for redis-py's client."""
        first = self._first_live("")
        return RedisClient(first.session.commands, self)

    @property
    def subclient(self) -> None:
        """None: each shard has one."""

    def sizes(self, queue: str) -> Sizes:
        """Return how many messages a queue has, for `client`."""
        return self.of_queue(queue).session.queues.sizes(queue)

    # -- calls over a part ------------------------------------------------------------------------------------------------

    @property
    def patience_s(self) -> float:
        """Seconds that a publish waits for a shard that is down: as long as for any server."""
        return self.options.socket_connect_timeout or 0.0

    def over(self, number: int, call: Callable[[PartChannel], T], wait_s: float = 0.0) -> T:
        """Return what `call` returns of the channel to a shard; once more where a connection was closed, and the shard answers.

        Raises ShardUnreachable where it is down, and does not come back within `wait_s` seconds.
        """
        state = self._transport.shard_state(number)
        was_down, began = state.is_down, time.monotonic()
        try:
            return self._once(number, call, wait_s)
        except ShardUnreachable:
            if was_down:
                raise
        return self._once(number, call, rest_s(wait_s, began))

    def _once(self, number: int, call: Callable[[PartChannel], T], wait_s: float) -> T:
        part = self.part(number, wait_s)
        try:
            return call(part)
        except ShardUnreachable:
            raise
        except ShardsRaised as error:
            raise self.raised(error) from error
        except CONNECTION_ERRORS as error:
            self.note_lost(part, error)
            raise self._transport.shard_state(number).unreachable(error) from error

    def raised(self, error: ShardsRaised) -> Exception:
        """Return what a publisher hears whose connection leads to fewer shards than there are: a connection error."""
        return self._transport.raised() or error

    def note_lost(self, part: PartChannel, error: Exception) -> None:
        """Note that a shard is lost, or refuses all writes. Raises `error` where it is neither."""
        if isinstance(error, ShardUnreachable):
            return
        # A server that takes nothing has changed nothing (`ServerUnavailable`).
        if not (part.session.broken or isinstance(error, ServerUnavailable)):
            raise error
        self._transport.shard_state(part.number).note_lost(error)

    def over_first(self, parts: Iterator[PartChannel], name: str, call: Callable[[PartChannel], T]) -> T:
        """Return what `call` returns over the first of some shards that takes it. Raises the error of the own one of `name`."""
        refusal: ServerOutOfMemory | None = None
        for part in parts:
            try:
                return self.over(part.number, call)
            except ShardUnreachable as error:
                logger.debug("%s", error)
            except ServerOutOfMemory as error:
                # Nothing was stored there.
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        raise self.unreachable(name)

    def on(self, queue: str, call: Callable[[PartChannel], T]) -> T:
        """Return what `call` returns of the channel to the shard of a queue. Raises as `over`."""
        return self.over(self._transport.number_of(check_queue_name(queue)), call, RECONNECT_S)

    def defer(
        self, number: int, queue: str, call: Callable[[PartChannel], Any], default: Any = None, *, declares: bool = False
    ) -> Any:
        """Do something on a shard; where it is down, and may be done when it is back, return `default`.

        That is so for a worker's queues, and for a broadcast queue that goes with its consumer: it hears over the other shards.
        A worker does the same where the shard refuses it (no permission, out of memory), unless no other shard is left.
        `declares` is for a declaration, since it may be bound only then.
        """
        try:
            return self.over(number, call, 0.0 if self._transport.defers else RECONNECT_S)
        except ShardUnreachable:
            known = self.topology.queues.get(queue)
            hears = known is not None and known.is_transient and (declares or known.broadcast)
            if not (self._transport.defers or hears):
                raise
            return default
        except REFUSALS as error:
            if not self._transport.defers:
                raise
            self._transport.stop(number, error)
            return default
