"""The part of a channel that receives broadcasts: subscriptions, deliveries, settlements, and who else subscribes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.consumers.unacked import Settlement
from celery_redis_plus.transport.amqp_errors import as_channel_errors, channel_error
from celery_redis_plus.transport.delivered_message import broadcast_payload
from celery_redis_plus.transport.delivery_tracking import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.broker.fanout.reader import Delivery
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor
    from celery_redis_plus.broker.fanout.subscriber_registry import Death, Subscriber
    from celery_redis_plus.keys import FanoutKeys
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.delivery_loop import DeliveryLoop
    from celery_redis_plus.transport.qos import QoS

logger = logging.getLogger(__name__)

#: What reading a broadcast raises that no version of this package has published.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


class Broadcasting:
    """Broadcasts of one channel. What is bound is bound for all channels of the connection."""

    session: BrokerConnection
    poller: DeliveryLoop
    qos: QoS
    timers_filled: int
    consumed: dict[str, Callable[[dict[str, Any]], Any]]

    def _check_open(self) -> None:
        raise NotImplementedError

    def _init_broadcasting(self) -> None:
        #: Broadcasts that were delivered and not settled: delivery tag -> position. It outlives the channel, for late acks.
        self.open_broadcasts: dict[str, SubscriberCursor] = {}
        self._settles: dict[str, bool] = {}

    # -- subscriptions ----------------------------------------------------------------------------------------------------

    def _fanout_bound(self, queue: str, exchange: str, routing_key: str) -> None:
        """Take the cursor now, so that nothing is missed between binding and consuming."""
        session = self.session
        keys = session.fanout_keys(exchange)
        session.bound.setdefault(queue, {})[exchange, routing_key] = keys
        self._position(queue, keys)
        self._read_anew(queue)

    def _read_anew(self, queue: str) -> None:
        for channel in self.poller.channels:
            if queue in channel.consumed:
                channel.read_broadcasts(queue)

    def _position(self, queue: str, keys: FanoutKeys) -> SubscriberCursor:
        session = self.session
        positions = session.service.positions
        position = positions.of(session, queue, keys.stream)
        if position is None:
            known = session.queues.read(queue)
            durable = known is not None and known.arguments.durable_subscriber
            position = session.registry.subscribe(keys, queue, durable=durable)
            positions.add(position, session)
        position.on_change = session.waker.wake
        return position

    def _fanout_unbound(self, queue: str, exchange: str, routing_key: str) -> None:
        session = self.session
        bound = session.bound.get(queue, {})
        keys = bound.pop((exchange, routing_key), None)
        if keys is None:
            return
        session.reader.unsubscribe(queue)
        if all(other != exchange for other, _ in bound):
            for position in session.service.positions.owned(session, queue):
                if position.stream == keys.stream:
                    self._drop(position)
            session.registry.forget_durable(keys, queue)
        self._read_anew(queue)

    def _fanout_deleted(self, queue: str, exchanges: set[str]) -> None:
        """Forget the subscriptions of a queue that is no more."""
        session = self.session
        session.bound.pop(queue, None)
        session.reader.unsubscribe(queue)
        for position in session.service.positions.owned(session, queue):
            self._drop(position)
        for exchange in exchanges:
            session.registry.forget_durable(session.fanout_keys(exchange), queue)

    def _drop(self, position: SubscriberCursor) -> None:
        self.session.service.positions.end(position, self.session.registry)

    def read_broadcasts(self, queue: str) -> None:
        """Read the queue's broadcasts for this channel, which consumes it."""
        session = self.session
        may = self._may_take if self._settles.get(queue, True) else None
        for (_, routing_key), keys in session.bound.get(queue, {}).items():
            position = self._position(queue, keys)
            position.decide(session.service.keeper)
            position.live = True
            session.reader.subscribe(position, routing_key, self, may)

    def _leave_broadcasts(self, queue: str) -> None:
        """Note that this connection consumes the queue no more."""
        for position in self.session.service.positions.owned(self.session, queue):
            self._drop(position)

    def _orphan_broadcasts(self, delivered: dict[str, Any]) -> None:
        """Leave the positions of a broken connection to the next one."""
        for queue in self.consumed:
            for position in self.session.service.positions.owned(self.session, queue):
                position.orphan(delivered)

    # -- deliveries -------------------------------------------------------------------------------------------------------

    def deliver_broadcast(self, delivery: Delivery) -> None:
        """Deliver a broadcast. Its tag is this process's; what settles it moves the cursor on."""
        subscription, entry, before, redelivered = delivery
        position = subscription.position
        tag = f"{position.id}/{entry[0].decode()}"
        try:
            payload = broadcast_payload(entry, tag, redelivered=redelivered)
        except UNREADABLE:
            logger.exception("broadcast %r to queue %r cannot be read; passed over", entry[0], position.queue)
            return
        deliver = self.consumed.get(position.queue)
        if deliver is None:
            return
        if before is not None:
            position.deliver(tag, entry, before)
            self.open_broadcasts[tag] = position
        if HEADER in payload["headers"]:
            self.session.tracking.delivered(payload["headers"], tag, position.id, entry[1][3])
            if before is None:
                self.session.tracking.settled(tag, Settlement.ACK)
        if payload["headers"].get("eta"):
            self.timers_filled += 1
        deliver(payload)

    def _may_take(self) -> bool:
        # Asked of the instance: Celery replaces it (worker_disable_prefetch).
        return self.qos.can_consume()

    def settle_broadcast(self, tag: str, settlement: Settlement) -> None:
        """Settle a broadcast; nothing where another thread has just done so."""
        position = self.open_broadcasts.pop(tag, None)
        if position is not None:
            position.settle(tag, settlement)

    # -- who subscribes ---------------------------------------------------------------------------------------------------

    @as_channel_errors
    def fanout_subscribers(self, exchange: str) -> list[Subscriber]:
        """Return who subscribes to a fanout exchange, in all processes, and how far each one is; the slowest first.

        What this process has processed since its last report, a second ago at most, is not in it.

        Raises:
            ChannelError: there is no such exchange (404), or it is no fanout exchange (406).
        """
        return self.session.registry.subscribers(self._fanout_exchange(exchange, "fanout_subscribers"))

    @as_channel_errors
    def fanout_deaths(self, exchange: str, since_ms: int = 0) -> list[Death]:
        """Return the subscribers of a fanout exchange that were declared dead after `since_ms`, in the last ten minutes.

        `since_ms` is ms since the epoch on the server's clock, such as the last death's `at_ms`.

        Raises:
            ChannelError: there is no such exchange (404), or it is no fanout exchange (406).
        """
        return self.session.registry.reap(self._fanout_exchange(exchange, "fanout_deaths"), since_ms)[1]

    def _fanout_exchange(self, exchange: str, method: str) -> FanoutKeys:
        self._check_open()
        record = self.session.bindings.record(exchange)
        if record is None:
            raise channel_error(f"NOT_FOUND - no exchange {exchange!r}", 404, f"Channel.{method}")
        if record.type != "fanout":
            raise channel_error(
                f"PRECONDITION_FAILED - exchange {exchange!r} is of type {record.type!r}; allowed is 'fanout'",
                406,
                f"Channel.{method}",
            )
        return self.session.fanout_keys(exchange)
