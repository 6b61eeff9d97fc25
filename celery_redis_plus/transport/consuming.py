"""The part of a channel that consumes: kombu's calls for consumers, and payloads as kombu's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kombu.utils.uuid import uuid

from celery_redis_plus.consumer.fanout_consumer import FanoutConsumer
from celery_redis_plus.consumer.queue_consumers import Payload, QueueConsumers
from celery_redis_plus.errors import InvalidArgument, ResourceLocked
from celery_redis_plus.transport.amqp_errors import as_channel_errors
from celery_redis_plus.transport.arguments import check_consumer_arguments
from celery_redis_plus.transport.broadcasting import Broadcasting
from celery_redis_plus.transport.delivered_message import Message, broadcast_payload, payload_of

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import Unacked
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
    from celery_redis_plus.transport.qos import QoS

#: Consumer priorities go from minus this to this.
MAX_CONSUMER_PRIORITY = 1_000_000


class Consuming(Broadcasting):
    """Consumers of one channel."""

    session: BrokerConnection
    delivery_loop: DeliveryLoop
    qos: QoS
    closed: bool

    def _init_consuming(self) -> None:
        #: consumer tag -> queue
        self._consumer_queues: dict[str, str] = {}
        #: Queues that were asked for single messages.
        self._getting: set[str] = set()
        self.queue_consumers = QueueConsumers(
            self.session, self.delivery_loop.restricted_queues, self.qos, decode=payload_of, on_end=self._consumer_ended
        )
        self.fanout_consumer = FanoutConsumer(self.session, self.qos, self.queue_consumers.consumed, decode=broadcast_payload)

    def _check_open(self) -> None:
        raise NotImplementedError

    @as_channel_errors
    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Callable[[Any], Any] | None = None,
        consumer_tag: str | None = None,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """Deliver the messages of `queue` to `callback` from now on; return the consumer's tag.

        Args:
            queue: its name.
            no_ack: a delivered message counts as settled.
            callback: called with each message.
            consumer_tag: a name for the consumer; None makes one.
            exclusive: consume the queue alone.
            arguments: `x-priority`, a whole number, says which consumers get messages first (0 where it is missing): those with
                a higher one get every message while they have credit, as in RabbitMQ
                (https://www.rabbitmq.com/docs/consumer-priority).
            kwargs: what kombu passes to other transports.

        Raises:
            InvalidArgument: `x-priority` is no whole number, or there is an argument that is unknown here.
            ChannelError: 403: another consumer has the queue alone, or this one wants to and there are others; 405: another
                connection declared it with `exclusive=True`.
        """
        self._check_open()
        self.session.check_process()
        self.session.ownership.check(queue)
        tag = consumer_tag or uuid()

        def deliver(payload: Payload, unacked: Unacked | None) -> Any:
            message = Message(payload, channel=self, unacked=unacked)
            message.queue = queue
            if unacked is not None:
                self.qos.deliver(message, unacked)
            return callback(message) if callback is not None else None

        priority = self._priority(queue, arguments)
        self.queue_consumers.consume(queue, tag, deliver, priority=priority, exclusive=exclusive, no_ack=no_ack)
        self._consumer_queues[tag] = queue
        self.fanout_consumer.consume(queue, no_ack=no_ack)
        # A loop that sleeps until other wake-ups has to hear of this queue.
        self.session.waker.wake()
        return tag

    def _priority(self, queue: str, arguments: Mapping[str, Any] | None) -> int:
        check_consumer_arguments(queue, arguments or {})
        priority = (arguments or {}).get("x-priority")
        if priority is None:
            return self.session.options.consumer_priority
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_CONSUMER_PRIORITY:
            raise InvalidArgument(
                f"argument 'x-priority' of a consumer of queue {queue!r} is {priority!r}; allowed is a whole number from "
                f"{-MAX_CONSUMER_PRIORITY} to {MAX_CONSUMER_PRIORITY}"
            )
        return priority

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. What it has claimed and nobody has seen goes back in place at once."""
        queue = self._consumer_queues.pop(consumer_tag, None)
        if queue is None or queue in self._consumer_queues.values():
            return
        if not self.session.broken:
            # Its messages go back with the others.
            self.delivery_loop.fetcher.pending.finish()
        if queue not in self.queue_consumers.consumed:
            # The reply told that the queue belongs to another connection.
            return
        self.queue_consumers.end(queue)
        if not self.session.broken and not self.delivery_loop.consumes(queue):
            self._leave_queue(queue)

    def _consumer_ended(self, queue: str) -> None:
        """Forget the consumers of a queue that belongs to another connection by now."""
        self._consumer_queues = {tag: name for tag, name in self._consumer_queues.items() if name != queue}
        self.fanout_consumer.leave(queue)

    def _leave_queue(self, queue: str) -> None:
        """Note that this connection consumes the queue no more; an auto-delete queue goes with its last consumer."""
        session = self.session
        self.fanout_consumer.leave(queue)
        # Not by what it was when this consumer began: a lasting queue may have been declared in its place.
        known = session.queues.read(queue)
        if known is None or not known.arguments.auto_delete:
            return
        try:
            session.ownership.check(queue)
        except ResourceLocked:
            return
        if session.queues.delete(queue, if_unused=True, if_id=known.id) is not None:
            session.disown(queue)
            session.bindings.unbind_queues([queue])
