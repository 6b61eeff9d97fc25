"""A channel over several shards: each of AMQP's methods goes to the whole channel of the shard that it concerns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils.uuid import uuid

from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.errors import ShardsRaised, Unroutable
from celery_redis_plus.shards.declarations import Arguments, DeclaringChannel
from celery_redis_plus.shards.parts import rest_s
from celery_redis_plus.shards.publish_batch import ShardsPublishBatch
from celery_redis_plus.shards.publishing import ShardsPublisher
from celery_redis_plus.shards.refusals import REFUSALS, REFUSES_WRITES
from celery_redis_plus.shards.topology import MOST_KNOWN
from celery_redis_plus.transport.amqp_errors import CHANNEL_ERRORS, CONNECTION_ERRORS, amqp_method
from celery_redis_plus.transport.arguments import check_prefetch_count
from celery_redis_plus.transport.channel import Channel

if TYPE_CHECKING:
    from celery_redis_plus.shards.credit import PartChannel
    from celery_redis_plus.shards.parts import Shards
    from celery_redis_plus.transport.kombu_message import Message as DeliveredMessage
    from celery_redis_plus.transport.publish_batch import OnConfirmed

logger = logging.getLogger(__name__)

#: What is wrong with one consumer, and not with its shard.
REFUSES_CONSUMER: tuple[type[Exception], ...] = (*CHANNEL_ERRORS, ValueError)


@dataclass(frozen=True, slots=True)
class _Consumer:
    """A consumer as the application has started it."""

    queue: str
    arguments: Mapping[str, Any]
    callback: Callable[[Any], Any] | None


class ShardsChannel(DeclaringChannel):
    """A channel of a connection with several shards."""

    def __init__(self, connection: Shards, **kwargs: Any) -> None:
        """Open a channel on `connection`, kombu's name for a transport."""
        self._consumed: dict[str, _Consumer] = {}
        #: Queue -> the channel over which it was published to.
        self._of_name: dict[str, PartChannel] = {}
        super().__init__(connection, **kwargs)
        self._publisher = ShardsPublisher(self)

    def is_fanout(self, exchange: str) -> bool:
        """Tell whether an exchange is a fanout exchange. Raises ShardUnreachable where no shard can be asked."""
        return self._publisher.is_fanout(exchange)

    def close(self) -> None:
        """Close the channel, as `Channel.close`, on each shard."""
        if self.closed:
            return
        self.closed = True
        self._consumed.clear()
        with ExitStack() as stack:
            if self.connection is not None:
                stack.callback(self.connection.close_channel, self)
            for part in self._parts.values():
                stack.callback(part.close)

    # -- publish ----------------------------------------------------------------------------------------------------------

    def basic_publish(
        self, message: dict[str, Any], exchange: str = "", routing_key: str = "", mandatory: bool = False, **kwargs: Any
    ) -> str | None:
        """Publish a message, as `Channel.basic_publish`; to queues of several shards it goes one after the other.

        Raises:
            ShardUnreachable: a shard that has, or may have, a queue for it cannot be reached; the other shards' queues have it.
        """
        try:
            return self._publish(message, exchange, routing_key, mandatory=mandatory, **kwargs)
        except Unroutable as error:
            self.return_message(error, message, exchange, routing_key)
            return None

    def _publish(self, message: dict[str, Any], exchange: str, routing_key: str, *, mandatory: bool, **kwargs: Any) -> str | None:
        if exchange:
            self.check_open()
            return self._publisher.publish(message, exchange, routing_key, mandatory=mandatory, **kwargs)
        part, began = self._of_name.get(routing_key), time.monotonic()
        if part is not None and part.is_ready and not kwargs.get("immediate"):
            try:
                return part.publisher.publish(message, "", routing_key, mandatory=mandatory)
            except ShardsRaised as error:
                raise self.raised(error) from error
            except CONNECTION_ERRORS as error:
                self.note_lost(part, error)
        number = self._transport.number_of(check_queue_name(routing_key))
        publish = partial(_publish, message=message, queue=routing_key, mandatory=mandatory, about=kwargs)
        found = self.over(number, publish, rest_s(self.patience_s, began))
        if len(self._of_name) > MOST_KNOWN:
            self._of_name.clear()
        self._of_name[routing_key] = self._parts[number]
        return found

    def create_publish_batch(self, max_size: int, on_confirmed: OnConfirmed | None = None) -> ShardsPublishBatch:
        """Return a batch for kombu's `Producer.batch` (kombu 5.7): at most `max_size` messages of a shard wait in it."""
        return ShardsPublishBatch(self, max_size, on_confirmed)

    # -- consume ----------------------------------------------------------------------------------------------------------

    @property
    def wants_any(self) -> bool:
        """Whether the application consumes over it."""
        return bool(self._consumed)

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
        """Deliver the messages of `queue` to `callback` from now on, as `Channel.basic_consume`."""
        tag = consumer_tag or uuid()
        about = {"no_ack": no_ack, "exclusive": exclusive, "arguments": arguments, "on_cancel": on_cancel, **kwargs}
        consumer = _Consumer(check_queue_name(queue), about, callback)
        # The loop is there before what it serves: it hears of each shard that is connected to.
        loop = self._transport.delivery_loop
        try:
            for number in self._numbers_of(queue):
                self.defer(number, queue, lambda part: self._start(part, tag, consumer))
        except BaseException:
            for part in self.brokers:
                if tag in part.started:
                    part.basic_cancel(tag)
            raise
        self._consumed[tag] = consumer
        self._transport.maintain()
        loop.wake()
        return tag

    def _numbers_of(self, queue: str) -> Iterable[int]:
        """Return the shards on which a queue is consumed."""
        known = self.topology.queues.get(queue)
        return self.numbers if known is not None and known.broadcast else (self._transport.number_of(queue),)

    def _start(self, part: PartChannel, tag: str, consumer: _Consumer) -> None:
        if tag in part.started:
            return

        def deliver(message: DeliveredMessage) -> Any:
            # An application that answers over it reaches all shards.
            message.channel = self
            try:
                return consumer.callback(message) if consumer.callback is not None else None
            except REFUSES_WRITES as error:
                # Of another connection, as far as the loop knows.
                self._transport.delivery_loop.raised = error
                raise

        part.basic_consume(consumer.queue, callback=deliver, consumer_tag=tag, **consumer.arguments)
        part.started.add(tag)

    def resume(self, number: int) -> None:
        """Declare, and consume, what the application consumes on a shard that is connected to again.

        A consumer that is refused keeps no other one from it. It ends as one whose queue was deleted: its `on_cancel` is called.
        One without is logged, and tried again when the shard is connected to once more.

        Raises ShardUnreachable, and what `refusals.REFUSALS` names: the shard takes none of them.
        """
        with ExitStack() as told:
            for tag, consumer in list(self._consumed.items()):
                if number not in self._numbers_of(consumer.queue):
                    continue
                try:
                    self.over(number, partial(self.topology.declare, consumer.queue))
                    self.over(number, partial(self._start, tag=tag, consumer=consumer))
                except REFUSALS:
                    raise
                except REFUSES_CONSUMER as error:
                    logger.error(  # noqa: TRY400 - no trace
                        "consumer %s of queue %r does not go on: %s", tag, consumer.queue, error, extra={"queue": consumer.queue}
                    )
                    on_cancel = consumer.arguments.get("on_cancel")
                    if on_cancel is not None and not any(tag in part.started for part in self.brokers):
                        del self._consumed[tag]
                        told.callback(on_cancel, tag)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer, as `Channel.basic_cancel`."""
        self._consumed.pop(consumer_tag, None)
        with ExitStack() as stack:
            for part in self.brokers:
                part.started.discard(consumer_tag)
                stack.callback(part.basic_cancel, consumer_tag)

    @amqp_method
    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> DeliveredMessage | None:
        """Return the queue's first message, or None, as `Channel.basic_get`."""
        # As a consumer, it has somebody look after the queues of all shards.
        _ = self._transport.delivery_loop
        message: DeliveredMessage | None = self.on(queue, lambda part: part.basic_get(queue, no_ack, **kwargs))
        if message is not None:
            message.channel = self
        return message

    @amqp_method
    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one message to this connection's consumers. Raises TimeoutError where none comes in time."""
        self._transport.drain_events(self._transport, timeout=timeout)

    # -- settle -----------------------------------------------------------------------------------------------------------

    basic_ack, basic_reject, basic_recover = Channel.basic_ack, Channel.basic_reject, Channel.basic_recover

    @amqp_method
    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages of all shards may be delivered and not settled, as `Channel.basic_qos`."""
        self.qos.prefetch_count = check_prefetch_count(prefetch_count)
        self._wake()

    @amqp_method
    def flow(self, active: bool = True) -> None:
        """Suspend the consumers of this channel, or let them go on, as `Channel.flow`."""
        self.qos.suspended = not active
        for part in self.brokers:
            part.flow(active)
        self._wake()

    def _wake(self) -> None:
        for part in self.brokers:
            if part.has_consumers:
                part.delivery_loop.wake()


def _publish(part: PartChannel, message: dict[str, Any], queue: str, *, mandatory: bool, about: Mapping[str, Any]) -> str | None:
    return part.basic_publish(message, "", queue, mandatory, **about)
