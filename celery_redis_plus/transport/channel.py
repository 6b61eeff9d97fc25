"""kombu's channel on our broker: AMQP's methods as kombu calls them. Each subject is the work of one part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from amqp.protocol import queue_declare_ok_t
from kombu.entity import Exchange, Queue
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from celery_redis_plus.broker.arguments.names import check_exchange_name, check_routing_key, check_table
from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord
from celery_redis_plus.connection import forks
from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.errors import ChannelClosed, NotSupported, ServerUnreachable, Unroutable
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS, amqp_method
from celery_redis_plus.transport.arguments import browses, check_prefetch_count, consumer_filter, consumer_priority
from celery_redis_plus.transport.compat import RedisClient, SocketOwner
from celery_redis_plus.transport.declarations import ExchangeOperations, QueueOperations
from celery_redis_plus.transport.publishing import ExchangePublisher
from celery_redis_plus.transport.returned_messages import ReturnsMessages

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import Unacked
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber, SubscriberDeath
    from celery_redis_plus.broker.queues.counters import Counters
    from celery_redis_plus.broker.queues.queues import Sizes
    from celery_redis_plus.consumer.channel_consumers import ChannelConsumers
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
    from celery_redis_plus.consumer.delivery_turns import Payload
    from celery_redis_plus.consumer.fanout_consumer import FanoutConsumer
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers
    from celery_redis_plus.transport.kombu_message import Message as DeliveredMessage
    from celery_redis_plus.transport.publish_batch import OnConfirmed, PublishBatch
    from celery_redis_plus.transport.qos import QoS as PrefetchLimit

#: The handle of a tracked delivery: `transport.api.Delivery`.
D = TypeVar("D")

#: A table of AMQP's `x-*` arguments.
Arguments = Mapping[str, Any] | None


class Channel(ReturnsMessages, virtual.Channel):
    """A channel; all channels of a connection share its session and its delivery loop.

    What only a channel with consumers needs is made, and loaded, at the first `basic_consume`, `basic_get` or `basic_qos`.
    """

    supports_fanout = True
    do_restore = True
    max_priority = 255
    closed: bool

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        """Open a channel on `connection`, kombu's name for our `Transport`."""
        session: PublisherSession = connection.session
        self.session, self._transport = session, connection
        super().__init__(connection, **kwargs)
        # kombu's virtual channel encodes bodies to text; ours are bytes all the way.
        self.body_encoding = None
        self.client = RedisClient(session.commands, session.queues)
        self._publisher = ExchangePublisher(session)
        self._exchanges = ExchangeOperations(session)
        self._queues = QueueOperations(session, lambda: self.fanout_consumer, connection.read_broadcasts_again)
        forks.on_fork_in_child(self)

    @fork_safe_property
    def Message(self) -> type[DeliveredMessage]:  # noqa: N802 - kombu's name
        """The class of delivered messages."""
        from celery_redis_plus.transport.kombu_message import Message

        return Message

    def QoS(self, channel: Channel) -> PrefetchLimit:  # noqa: N802 - kombu's name
        """Return the channel's prefetch limit; kombu calls it once."""
        with forks.loading:
            from celery_redis_plus.transport.qos import QoS

        return QoS(channel)

    @fork_safe_property
    def delivery_loop(self) -> DeliveryLoop:
        """What serves the consumers of all channels of the connection."""
        loop: DeliveryLoop = self._transport.delivery_loop
        return loop

    @fork_safe_property
    def consumer_session(self) -> ConsumerSession:
        """What the connection consumes with."""
        return self.delivery_loop.server.session

    @fork_safe_property
    def _consumed(self) -> ChannelConsumers:
        with forks.loading:
            from celery_redis_plus.consumer.channel_consumers import ChannelConsumers
            from celery_redis_plus.transport.kombu_message import broadcast_payload, payload_of

        server = self.delivery_loop.server
        return ChannelConsumers(server, self.qos, decode=payload_of, decode_broadcast=broadcast_payload)

    @property
    def has_consumers(self) -> bool:
        """Whether the channel consumes, or did."""
        return "_consumed" in self.__dict__

    @fork_safe_property
    def queue_consumers(self) -> QueueConsumers:
        """The consumers of its queues."""
        return self._consumed.queues

    @fork_safe_property
    def fanout_consumer(self) -> FanoutConsumer:
        """Its broadcasts."""
        return self._consumed.fanout

    @property
    def subclient(self) -> SocketOwner | None:
        """What waits for messages, by kombu's name; None where nothing does."""
        return SocketOwner(self.consumer_session.wakeup_connection) if self.has_consumers else None

    @property
    def brokers(self) -> tuple[Channel, ...]:
        """The channels to all brokers that the application's channel leads to: this one."""
        return (self,)

    def all_brokers(self) -> Sequence[Channel]:
        """Return the channels to all brokers, connecting to those that are not open: this one."""
        return (self,)

    def composed(self, deliveries: Sequence[D]) -> D:
        """Return the handle of a delivery, of which each broker has a part: there is one."""
        return deliveries[0]

    def begin_in_pool(self) -> None:
        """Have a delivered task begin when the worker's pool begins it: until then, a lost worker is no failure of it."""
        self.queue_consumers.begins_at_delivery = False

    def of_queue(self, queue: str) -> Channel:
        """Return the channel to the broker that has a queue: this one."""
        return self

    def of_broadcasts(self, exchange: str) -> Channel:
        """Return the channel over which broadcasts of a fanout exchange are published: this one."""
        return self

    def check_open(self) -> None:
        """Raise ServerUnreachable where the channel is closed with its connection, else ChannelClosed where it is closed."""
        if not self.closed:
            return
        if self.session.commands.connected:
            raise ChannelClosed("the channel is closed; open a new one with connection.channel()")
        # As py-amqp: kombu's retry opens a new connection for this, and repeats a channel's error on the same channel.
        raise ServerUnreachable(f"the channel was closed with its connection to {self.session.address.display()}")

    def close(self) -> None:
        """Close the channel.

        Unseen messages go back at once, and so do those that were delivered and will not be settled any more. Under Celery
        a channel also closes because its connection broke, while tasks of it run: those are kept until they settle.
        """
        if self.closed:
            return
        self.closed = True
        try:
            if self.has_consumers:
                self._end_consumers()
        finally:
            if self.connection is not None:
                self.connection.close_channel(self)

    def _end_consumers(self) -> None:
        try:
            self._consumed.close()
        except CONNECTION_ERRORS:
            self.session.abandon()
            self._consumed.abandon()
        finally:
            self._consumed.clear()

    def forked(self) -> None:
        """Leave what was delivered to the parent, in a child."""
        if self.has_consumers:
            self._consumed.forked()

    # -- publish ----------------------------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: Any,
        priority: Any = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a message as kombu's transports pass it around; `properties` stays the same dict, even an empty one."""
        if properties is None:
            properties = {}
        properties.setdefault("delivery_info", {})
        properties.setdefault("priority", priority or self.default_priority)
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self, message: dict[str, Any], exchange: str = "", routing_key: str = "", mandatory: bool = False, **kwargs: Any
    ) -> str | None:
        """Publish a message, and return when the server has confirmed it.

        Returns:
            None; or, for a message with an `x-deduplication-id`, the id of the one that stands for it already: it was not stored.

        Raises:
            InvalidPriority, InvalidEta, InvalidQueueName, MessageTooLarge: the message cannot be published as it is.
            InvalidArgument: an option that only `celery_redis_plus.publish` understands.
            ChannelError: the channel is closed; or nothing takes the message, it is `mandatory`, and no producer has `on_return`.
            NotReplicated: the message is stored, on fewer replicas than `wait_replicas` asks for.
            PublishRefused: a queue does not take it: it is full, or accepts other types. Other queues that the exchange routes
                it to have it all the same.
            redis.exceptions.RedisError: as `error_translation.translate` names it. A publish that kombu repeats stays one.
        """
        if self.closed:
            self.check_open()
        if exchange and not (type(exchange) is str is type(routing_key)):
            exchange, routing_key = check_exchange_name(exchange), check_routing_key(routing_key or "")
        if kwargs.get("immediate"):
            raise NotSupported("NOT_IMPLEMENTED - immediate=True is not supported, as in RabbitMQ; allowed is mandatory=True")
        try:
            return self._publisher.publish(message, exchange, routing_key, mandatory=mandatory)
        except Unroutable as error:
            self.return_message(error, message, exchange, routing_key)
            return None

    def create_publish_batch(self, max_size: int, on_confirmed: OnConfirmed | None = None) -> PublishBatch:
        """Return a batch for kombu's `Producer.batch` (kombu 5.7): at most `max_size` messages wait in it."""
        from celery_redis_plus.transport.publish_batch import PublishBatch

        return PublishBatch(self, max_size, publisher=self._publisher, on_confirmed=on_confirmed)

    # -- consume ----------------------------------------------------------------------------------------------------------

    @amqp_method
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
        """Deliver the messages of `queue` to `callback` from now on; return the consumer's tag.

        Consumers of one queue on one channel get its messages in turn.

        Args:
            queue: its name.
            no_ack: a delivered message counts as settled.
            callback: called with each message.
            consumer_tag: None makes one; one that is in use on this channel is refused.
            exclusive: consume the queue alone.
            arguments: `x-priority`, a whole number (0 where it is missing): consumers with a higher one get every message while
                they have credit, as in RabbitMQ (https://www.rabbitmq.com/docs/consumer-priority). `x-browse`, true: it gets
                copies of the ready messages, which stay where they are; it settles nothing, and prefetch does not count for it.
                `x-filter`, headers and their values as for a binding of a headers exchange: only messages that match, of a queue
                with `x-filtered`.
            on_cancel: called with the tag where the server cancels the consumer, because its queue was deleted, by
                `drain_events` or the event loop. Without it they raise `amqp.ConsumerCancelled`, as py-amqp does.
            kwargs: what kombu passes to other transports.

        Raises:
            InvalidArgument: `x-priority` is no whole number; or there is an argument that is unknown here; or `x-browse` or
                `x-filter` of a queue that is bound to a fanout exchange.
            ChannelError: 404: there is no such queue to browse; 530: the tag is in use on this channel; 403: another consumer has
                the queue alone, or this one wants to and there are others; 405: another connection declared it with
                `exclusive=True`.
        """
        tag = consumer_tag or uuid()
        priority = consumer_priority(queue, arguments, self.session.options.consumer_priority)
        browsing = browses(queue, arguments, exclusive=exclusive)

        message_class = self.Message

        def deliver(payload: Payload, unacked: Unacked | None) -> Any:
            message = message_class(payload, channel=self, unacked=unacked)
            message.queue = queue
            if not browsing:
                self.qos.deliver(message, unacked)
            return callback(message) if callback is not None else None

        if browsing:
            self._consumed.browse(queue, tag, lambda copy: deliver(copy, None))
            return tag
        wanted = consumer_filter(queue, arguments)
        self._consumed.consume(
            queue, tag, deliver, priority=priority, exclusive=exclusive, no_ack=no_ack, wanted=wanted, on_cancel=on_cancel
        )
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Claimed messages that the application has not seen go back in place at once."""
        if self.has_consumers:
            self._consumed.cancel(consumer_tag)

    @amqp_method
    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> DeliveredMessage | None:
        """Return the queue's first message, or None.

        Raises:
            ChannelError: the channel is closed; 403: another consumer has the queue alone; 405: it has a single active consumer.
        """
        found = self._consumed.get(queue)
        if found is None:
            return None
        payload, unacked = found
        message = self.Message(payload, channel=self, unacked=unacked)
        self.qos.deliver(message, unacked)
        if no_ack:
            self.qos.ack(unacked.tag)
        return message

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one message to this connection's consumers. Raises TimeoutError where none comes in time."""
        self.check_open()
        self.connection.drain_events(self.connection, timeout=timeout)

    # -- settle -----------------------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Settle a message as done; `multiple`: and all that were delivered before it.

        Works on a closed channel too: a task that outlived its connection is settled all the same.
        """
        for tag in self.qos.up_to(delivery_tag) if multiple else (delivery_tag,):
            self.qos.settle(tag, Settlement.ACK)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle a message that was not done: with `requeue` back in place, else to the queue's dead letters."""
        self.qos.settle(delivery_tag, Settlement.REQUEUE if requeue else Settlement.REJECT)

    @amqp_method
    def basic_recover(self, requeue: bool = False) -> None:
        """Give everything delivered and not settled back, to the next consumer that claims it."""
        if not requeue:
            raise NotSupported("basic.recover without requeue is not supported")
        self.qos.restore_unacked()

    @amqp_method
    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be delivered and not settled; 0 is no limit.

        Raises:
            InvalidArgument: it is negative, or no number.
        """
        self.qos.prefetch_count = check_prefetch_count(prefetch_count)
        self.consumer_session.waker.wake()

    @amqp_method
    def flow(self, active: bool = True) -> None:
        """Suspend the consumers of this channel, or let them go on (`active`); other channels of the connection are not affected.

        Suspended, they get neither messages nor broadcasts. What was prefetched and not delivered goes back in place at once,
        for other consumers. What was delivered stays theirs to settle, and `basic_get` works.
        """
        self.qos.suspended = not active
        if not active:
            self._consumed.suspend()
        self.consumer_session.waker.wake()

    # -- exchanges --------------------------------------------------------------------------------------------------------

    @amqp_method
    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - kombu's name
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Arguments = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange; `passive` only asks whether it exists.

        Raises:
            ChannelError: it exists with another declaration (406), or does not exist (404, `passive`).
        """
        kind = type or "direct"
        name = check_exchange_name(exchange or f"amq.{kind}")
        if passive:
            self._exchanges.check_exists(name)
        else:
            table = check_table(f"exchange {name!r}", arguments)
            self.session.bindings.declare(name, ExchangeRecord(kind, durable, auto_delete, table))

    @amqp_method
    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings; its queues stay. `if_unused`: only if nothing is bound to it."""
        self._forget_declaration(Exchange(check_exchange_name(exchange)))
        self._exchanges.delete(exchange, if_unused=if_unused)

    def _forget_declaration(self, entity: Any) -> None:
        """Let kombu declare it anew: `maybe_declare` (5.6, 5.7) passes over what this connection has declared once.

        Reply queues of remote control have few names, and are deleted after each call: the next one would have none.
        """
        self.connection.client.declared_entities.discard(hash(entity))

    def exchange_bind(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: exchanges cannot be bound to exchanges."""
        raise NotImplementedError("exchange-to-exchange bindings are not supported: bind the queue to both exchanges")

    exchange_unbind = exchange_bind

    @amqp_method
    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) of every binding."""
        return self._exchanges.all_bindings()

    @amqp_method
    def get_exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        return self.session.bindings.names()

    @amqp_method
    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return an exchange's bindings as kombu's transports do: (routing key, None, queue)."""
        return [
            (binding.routing_key, None, binding.queue) for binding in self.session.bindings.all(check_exchange_name(exchange))
        ]

    @amqp_method
    def fanout_subscribers(self, exchange: str) -> list[Subscriber]:
        """Return who subscribes to a fanout exchange, in all processes, and how far each one is; the slowest first.

        What this process has processed since its last report, a second ago at most, is not in it.
        Raises ChannelError where there is no such exchange (404), or it is no fanout exchange (406).
        """
        return self._exchanges.subscribers(exchange)

    @amqp_method
    def fanout_counters(self, exchange: str) -> dict[str, int]:
        """Return the counters of a fanout exchange: see docs/metrics.md. Raises as `fanout_subscribers`."""
        return self._exchanges.counters(exchange)

    @amqp_method
    def fanout_deaths(self, exchange: str, since_ms: int = 0) -> list[SubscriberDeath]:
        """Return the subscribers of a fanout exchange that were declared dead after `since_ms`, in the last ten minutes.

        `since_ms` is ms since the epoch on the server's clock, such as the last death's `at_ms`. Raises as `fanout_subscribers`.
        """
        return self._exchanges.deaths(exchange, since_ms)

    # -- queues -----------------------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **kwargs: Any) -> Any:
        """Return kombu's own queue options as `x-*` arguments."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    @amqp_method
    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Arguments = None,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue and return its name, its ready messages and its consumers.

        Raises:
            ChannelError: it exists with other arguments (406), or does not exist (404, `passive`); another connection declared it
                with `exclusive=True` (405).
        """
        name = check_queue_name(queue or f"amq.gen-{uuid()}")
        arguments = check_table(f"queue {name!r}", arguments)
        if passive:
            return queue_declare_ok_t(name, *self._queues.look_up(name))
        ready = self._queues.declare(name, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        return queue_declare_ok_t(name, ready, 0)

    @amqp_method
    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int:
        """Delete a queue, its messages and its bindings; return how many ready messages went with it.

        With `if_unused` or `if_empty` only where it has no consumers, or no messages, ready or delayed; 0 where it stays. As in
        RabbitMQ, delivered messages that are not settled do not count, and go with the queue.
        """
        self._forget_declaration(Queue(queue))
        return self._queues.delete(queue, if_unused=if_unused, if_empty=if_empty)

    def after_reply_message_received(self, queue: str) -> None:
        """Delete a reply queue that has served."""
        self.queue_delete(queue)

    @amqp_method
    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Remove all waiting messages, ready and delayed; return how many."""
        return self._queues.purge(queue)

    @amqp_method
    def queue_sizes(self, queue: str) -> Sizes:
        """Return how many messages a queue has: ready, delayed, unacked."""
        return self.session.queues.sizes(check_queue_name(queue))

    @amqp_method
    def queue_counters(self, queue: str) -> Counters:
        """Return what has happened in a queue since it was declared, and what is in it, in one round trip.

        Raises:
            ChannelError: there is no such queue (404), or the channel is closed.
        """
        from celery_redis_plus.broker.queues.counters import read_counters

        return read_counters(self.session.commands, self.session.keys, check_queue_name(queue))

    @amqp_method
    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Arguments = None, **kwargs: Any
    ) -> None:
        """Bind a queue to an exchange. On a fanout exchange, broadcasts are read from this moment on.

        Raises:
            ChannelError: the exchange is a fanout, and the queue has an argument that no broadcast heeds (406).
        """
        self._queues.bind(queue, exchange or "amq.direct", routing_key or "", arguments or {})

    @amqp_method
    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Arguments = None, **kwargs: Any
    ) -> None:
        """Remove a binding; one that does not exist is passed over."""
        self._queues.unbind(queue, exchange or "amq.direct", routing_key or "", arguments or {})
