"""A channel over several lanes: for each of AMQP's methods it finds the lane of the queue or exchange, and lets that do it.

What this file does not name cannot be done with several lanes: `session` says so, instead of looking at one lane alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from kombu.transport import virtual

from celery_redis_plus.broker.lanes.by_queue import ByQueue, of_queue
from celery_redis_plus.broker.publishing.tracking_request import TRACK
from celery_redis_plus.connection.lanes import only_one_lane
from celery_redis_plus.consumer.lane_fanouts import LaneFanouts
from celery_redis_plus.errors import ChannelClosed, InvalidArgument, NotSupported, ServerUnreachable
from celery_redis_plus.transport.channel import Arguments, Channel
from celery_redis_plus.transport.compat import RedisClient
from celery_redis_plus.transport.declarations import QueueOperations
from celery_redis_plus.transport.lane_batch import LanePublishBatch
from celery_redis_plus.transport.lane_credit import LaneQoS, SharedQoS
from celery_redis_plus.transport.lane_publishing import LanesPublisher
from celery_redis_plus.transport.publish_batch import PublishBatch

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber, SubscriberDeath
    from celery_redis_plus.broker.queues.counters import Counters
    from celery_redis_plus.broker.queues.queues import Queues, Sizes
    from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
    from celery_redis_plus.consumer.fetcher import Fetcher
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.transport.kombu_message import Message
    from celery_redis_plus.transport.publishing import ExchangePublisher


class _LaneTransport:
    """What the channel of one lane has for a transport."""

    channel_max = 1

    def __init__(self, transport: Any, session: PublisherSession) -> None:
        self.client = transport.client
        self.session = session
        self.delivery_loop: DeliveryLoop = transport.delivery_loop
        self.read_broadcasts_again = transport.read_broadcasts_again
        self.drain_events = transport.drain_events
        self._used_channel_ids: list[int] = []

    def close_channel(self, channel: Channel) -> None:
        """Forget the channel."""
        channel.connection = None


class LaneOfChannel(Channel):
    """The part of a channel that is in one lane; the messages of the lane's queues belong to it."""

    QoS = LaneQoS

    def __init__(self, transport: Any, session: PublisherSession, whole: LaneChannel) -> None:
        """Open it over `session`."""
        self._whole = whole
        super().__init__(_LaneTransport(transport, session))

    @property
    def whole(self) -> LaneChannel:
        """The channel that the application has, and so do its messages."""
        return self._whole

    def join(self, fanouts: LaneFanouts, publisher: ExchangePublisher) -> QueueOperations:
        """Read broadcasts of all lanes, and publish as one of them; return what declares this lane's queues."""
        self._publisher = publisher
        self._consumed.fanout = fanouts  # type: ignore[assignment]
        self._queues = QueueOperations(self.session, lambda: fanouts, self.connection.read_broadcasts_again)  # type: ignore[arg-type,return-value]
        return self._queues

    def taken(self) -> int:
        """Return how many messages are claimed in this lane and not delivered, those included that may come yet."""
        fetcher: Fetcher = self.delivery_loop.server_of(self.session).fetcher
        return len(self.queue_consumers.buffer) + fetcher.pending_for(self.queue_consumers)


class LaneQueueOperations(ByQueue):
    """The `QueueOperations` of all lanes."""

    def declare(self, name: str, arguments: Mapping[str, Any] | None, **kwargs: Any) -> int:
        """Declare a queue in its lane, as `QueueOperations.declare`; refuse (540) what several lanes cannot do."""
        wanted = arguments or {}
        if wanted.get("x-event-log"):
            refuse(f"the argument 'x-event-log' of queue {name!r}", len(self.of_lanes))
        if wanted.get("x-durable-subscriber") and wanted.get("x-expires"):
            refuse(f"'x-durable-subscriber' together with 'x-expires' (queue {name!r})", len(self.of_lanes))
        return cast("int", self.of(name).declare(name, arguments, **kwargs))


def refuse(what: str, lanes: int) -> None:
    """Raise NotSupported: several lanes cannot do it."""
    raise NotSupported(only_one_lane(what, lanes))


class LaneChannel(Channel):
    """A channel of a connection with several lanes."""

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        """Open a channel on `connection`, kombu's name for our `Transport`."""
        self.sessions: list[PublisherSession] = connection.sessions
        self._transport = connection
        virtual.Channel.__init__(self, connection, **kwargs)
        self.body_encoding = None
        first = self.sessions[0]
        self._options = first.options
        self.client = RedisClient(first.commands, cast("Queues", ByQueue([session.queues for session in self.sessions])))
        self._lanes: list[LaneOfChannel] = []
        for session in self.sessions:
            self._lanes.append(LaneOfChannel(connection, session, self))
        fanouts = LaneFanouts([lane.fanout_consumer for lane in self._lanes], self._read_record)
        self.fanout_consumer = fanouts  # type: ignore[assignment]
        self._publisher = self._publishers = LanesPublisher(self.sessions)
        joined = zip(self._lanes, self._publishers.lanes, strict=True)
        self._queues = LaneQueueOperations([lane.join(fanouts, publisher) for lane, publisher in joined])  # type: ignore[assignment]

    def QoS(self, _: Any) -> SharedQoS:  # noqa: N802 - kombu's name
        """Return the limit of all lanes; kombu calls it once."""
        return SharedQoS(self, overfetch_factor=self._options.overfetch_factor)

    @property
    def session(self) -> PublisherSession:  # type: ignore[override]
        """Raise InvalidArgument: what asks for it knows of one lane only."""
        raise InvalidArgument(only_one_lane("this", len(self.sessions)))

    @property
    def lanes(self) -> tuple[Channel, ...]:
        """The channel of each lane."""
        return tuple(self._lanes)

    def lane_of(self, name: str) -> LaneOfChannel:
        """Return the channel of the lane of a queue, or of a fanout exchange."""
        return of_queue(self._lanes, name)

    def _read_record(self, queue: str) -> Any:
        return self.lane_of(queue).session.queues.read(queue)

    def taken(self) -> int:
        """Return how many messages are claimed in all lanes and not delivered, those included that may come yet."""
        return sum([lane.taken() for lane in self._lanes])

    def check_open(self) -> None:
        """Raise ServerUnreachable where the channel is closed with its connection, else a ChannelError where it is closed."""
        if not self.closed:
            return
        if all(session.commands.connected for session in self.sessions):
            raise ChannelClosed("the channel is closed; open a new one with connection.channel()")
        raise ServerUnreachable(f"the channel was closed with its connection to {self.sessions[0].address.display()}")

    def close(self) -> None:
        """Close the channel, as `Channel.close`. The connection to one lane is lost with that to another."""
        if self.closed:
            return
        self.closed = True
        if any(session.broken for session in self.sessions):
            for session in self.sessions:
                session.abandon()
        with ExitStack() as stack:
            if self.connection is not None:
                stack.callback(self.connection.close_channel, self)
            for lane in self._lanes:
                stack.callback(lane.close)

    @property
    def subclient(self) -> None:
        """None: each lane has one."""

    def forked(self) -> None:
        """Do nothing: the lanes do."""

    # -- publish ----------------------------------------------------------------------------------------------------------

    def basic_publish(
        self, message: dict[str, Any], exchange: str = "", routing_key: str = "", mandatory: bool = False, **kwargs: Any
    ) -> str | None:
        """Publish a message, as `Channel.basic_publish`. To queues of several lanes it goes one after the other.

        Raises:
            InvalidArgument: it is to be tracked.
        """
        if TRACK in message["properties"]:
            refuse("the tracked publish", len(self._lanes))
        return super().basic_publish(message, exchange, routing_key, mandatory, **kwargs)

    def create_publish_batch(self, max_size: int) -> Any:
        """Return a batch for kombu's `Producer.batch` (kombu 5.7): at most `max_size` messages of a lane wait in it."""
        lanes = zip(self._lanes, self._publishers.lanes, strict=True)
        return LanePublishBatch(self, [PublishBatch(lane, max_size, publisher=publisher) for lane, publisher in lanes])

    # -- consume ----------------------------------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Callable[[Any], Any] | None = None,
        consumer_tag: str | None = None,
        exclusive: bool = False,
        arguments: Arguments = None,
        on_cancel: Callable[[str], Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """Deliver the messages of `queue` to `callback` from now on, as `Channel.basic_consume`."""
        self.check_open()
        return self.lane_of(queue).basic_consume(queue, no_ack, callback, consumer_tag, exclusive, arguments, on_cancel, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer, as `Channel.basic_cancel`."""
        for lane in self._lanes:
            lane.basic_cancel(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Message | None:
        """Return the queue's first message, or None, as `Channel.basic_get`."""
        self.check_open()
        return self.lane_of(queue).basic_get(queue, no_ack, **kwargs)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages of all lanes may be delivered and not settled; 0 is no limit."""
        self.check_open()
        self.qos.prefetch_count = prefetch_count or 0
        self._lanes[0].consumer_session.waker.wake()

    def flow(self, active: bool = True) -> None:
        """Suspend the consumers of this channel, or let them go on, as `Channel.flow`."""
        self.check_open()
        self.qos.suspended = not active
        for lane in self._lanes:
            lane.flow(active)

    # -- exchanges --------------------------------------------------------------------------------------------------------

    def exchange_declare(self, *args: Any, **kwargs: Any) -> None:
        """Declare an exchange in all lanes, as `Channel.exchange_declare`."""
        self.check_open()
        for lane in self._lanes:
            lane.exchange_declare(*args, **kwargs)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings, as `Channel.exchange_delete`."""
        self.check_open()
        if if_unused and self.get_table(exchange):
            return
        for lane in self._lanes:
            lane.exchange_delete(exchange)

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) of every binding."""
        self.check_open()
        return chain.from_iterable(lane.list_bindings() for lane in self._lanes)

    def get_exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        self.check_open()
        return list(dict.fromkeys(chain.from_iterable(lane.get_exchanges() for lane in self._lanes)))

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return an exchange's bindings as kombu's transports do: (routing key, None, queue)."""
        self.check_open()
        return [binding for lane in self._lanes for binding in lane.get_table(exchange)]

    def fanout_subscribers(self, exchange: str) -> list[Subscriber]:
        """Return who subscribes to a fanout exchange, as `Channel.fanout_subscribers`."""
        self.check_open()
        return self.lane_of(exchange).fanout_subscribers(exchange)

    def fanout_counters(self, exchange: str) -> dict[str, int]:
        """Return the counters of a fanout exchange, as `Channel.fanout_counters`."""
        self.check_open()
        return self.lane_of(exchange).fanout_counters(exchange)

    def fanout_deaths(self, exchange: str, since_ms: int = 0) -> list[SubscriberDeath]:
        """Return the subscribers of a fanout exchange that were declared dead, as `Channel.fanout_deaths`."""
        self.check_open()
        return self.lane_of(exchange).fanout_deaths(exchange, since_ms)

    # -- queues -----------------------------------------------------------------------------------------------------------

    def queue_sizes(self, queue: str) -> Sizes:
        """Return how many messages a queue has: ready, delayed, unacked."""
        self.check_open()
        return self.lane_of(queue).queue_sizes(queue)

    def queue_counters(self, queue: str) -> Counters:
        """Return what has happened in a queue since it was declared, as `Channel.queue_counters`."""
        self.check_open()
        return self.lane_of(queue).queue_counters(queue)
