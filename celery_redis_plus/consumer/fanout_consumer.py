"""The broadcasts of one channel: subscriptions, deliveries and settlements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.consumer.delivery_tracking import HEADER
from celery_redis_plus.consumer.delivery_turns import Deliver, Payload
from celery_redis_plus.stored_message import UnreadableMessageError

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.entries import Entry
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor
    from celery_redis_plus.broker.fanout.subscription import Delivery
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.queue_consumers import Credit
    from celery_redis_plus.keys import FanoutKeys

logger = logging.getLogger(__name__)

#: Makes a payload of a stream's entry and a delivery tag; the third argument tells whether it is delivered again.
DecodeBroadcast = Callable[["Entry", str, bool], Payload]


class FanoutConsumer:
    """Broadcasts of one channel. What is bound is bound for all channels of the connection."""

    def __init__(
        self,
        session: ConsumerSession,
        credit: Credit,
        consumed: Mapping[str, Deliver],
        *,
        decode: DecodeBroadcast,
    ) -> None:
        """Read nothing yet.

        Args:
            session: of the connection, as far as it consumes.
            credit: the channel's prefetch limit.
            consumed: queue -> the function that its deliveries are handed to; the caller keeps it up to date.
            decode: makes a payload of a stream's entry; raises UnreadableMessageError where it cannot.
        """
        self._session = session
        self._credit = credit
        self._consumed = consumed
        self._decode = decode
        #: Queues whose consumer takes broadcasts without acks.
        self._no_ack: set[str] = set()
        #: Queues and errors of broadcasts that could not be read, which the log has.
        self._logged: set[tuple[str, type[BaseException]]] = set()

    # -- subscriptions ----------------------------------------------------------------------------------------------------

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Take the cursor now, so that nothing is missed between binding and consuming."""
        session = self._session
        keys = session.publisher_session.fanout_keys(exchange)
        session.bound.setdefault(queue, {})[exchange, routing_key] = keys
        self._position(queue, keys)

    def unbind(self, queue: str, exchange: str, routing_key: str) -> bool:
        """End what `bind` began; return whether there was such a binding, and the queue's others have to be read anew."""
        session = self._session
        bound = session.bound.get(queue, {})
        keys = bound.pop((exchange, routing_key), None)
        if keys is None:
            return False
        session.reader.unsubscribe(queue)
        if all(other != exchange for other, _ in bound):
            for position in session.service.positions.owned(session, queue):
                if position.stream == keys.stream:
                    self._end(position)
            session.registry.forget_durable(keys, queue)
        return True

    def forget_queue(self, queue: str, exchanges: Collection[str]) -> None:
        """Forget the subscriptions of a queue that was deleted, and was bound to fanout `exchanges`."""
        session = self._session
        session.bound.pop(queue, None)
        session.reader.unsubscribe(queue)
        self.leave(queue)
        for exchange in exchanges:
            session.registry.forget_durable(session.publisher_session.fanout_keys(exchange), queue)

    def bound_to(self, queue: str) -> list[str]:
        """Return the fanout exchanges that this connection has bound a queue to."""
        return [exchange for exchange, _ in self._session.bound.get(queue, ())]

    def consume(self, queue: str, *, no_ack: bool) -> None:
        """Read the queue's broadcasts for this channel, which consumes it."""
        if no_ack:
            self._no_ack.add(queue)
        else:
            self._no_ack.discard(queue)
        self.subscribe(queue)

    def subscribe(self, queue: str) -> None:
        """Read the broadcasts of what the queue is bound to now, if this channel consumes it."""
        if queue not in self._consumed:
            return
        session = self._session
        may = None if queue in self._no_ack else self._may_take
        for (_, routing_key), keys in session.bound.get(queue, {}).items():
            position = self._position(queue, keys)
            position.decide(session.service.active_tasks)
            position.live = True
            session.reader.subscribe(position, routing_key, self, may)

    def stop(self, queue: str) -> None:
        """Read no more broadcasts of a queue: its consumer ends."""
        self._session.reader.unsubscribe(queue)

    def leave(self, queue: str) -> None:
        """Note that this connection consumes the queue no more."""
        for position in self._session.service.positions.owned(self._session, queue):
            self._end(position)

    def orphan(self) -> None:
        """Leave the positions of a broken connection, and what was delivered of them, to the next one."""
        for queue in self._consumed:
            for position in self._session.service.positions.owned(self._session, queue):
                position.orphan()

    def _position(self, queue: str, keys: FanoutKeys) -> SubscriberCursor:
        session = self._session
        positions = session.service.positions
        position = positions.of(session, queue, keys.stream)
        if position is None:
            known = session.queues.read(queue)
            durable = known is not None and known.arguments.durable_subscriber
            position = session.registry.subscribe(keys, queue, durable=durable)
            positions.add(position, session)
        position.on_change = session.waker.wake
        if limits := session.publisher_session.exchange_limits(keys.exchange):
            position.report_each(limits.reports_every, session.report_progress)
        return position

    def _end(self, position: SubscriberCursor) -> None:
        self._session.service.positions.end(position, self._session.registry.unsubscribe)

    def _may_take(self) -> bool:
        # Asked of the instance: Celery replaces it (worker_disable_prefetch).
        return self._credit.can_consume()

    # -- deliveries -------------------------------------------------------------------------------------------------------

    def deliver_broadcast(self, delivery: Delivery) -> int:
        """Deliver a broadcast; return how many entries that has added to Celery's timer.

        Its tag is this process's; what settles it moves the cursor on.
        """
        subscription, entry, before, redelivered = delivery
        position = subscription.position
        tag = f"{position.id}/{entry[0].decode()}"
        try:
            payload = self._decode(entry, tag, redelivered)
        except UnreadableMessageError as unreadable:
            self._pass_over(position, entry, unreadable)
            return 0
        except BaseException:
            if before is not None:
                # An interrupt, which tells nothing of the broadcast.
                position.deliver(tag, entry, before)
                position.settle(tag, Settlement.REQUEUE)
            raise
        deliver = self._consumed.get(position.queue)
        if deliver is None:
            return 0
        unacked = None if before is None else position.deliver(tag, entry, before)
        if HEADER in payload["headers"]:
            tracking = self._session.publisher_session.tracking
            tracked = tracking.delivered(payload["headers"], position.id, entry[1][3])
            if unacked is not None:
                unacked.tracked = tracked
            elif tracked is not None:
                tracking.settled(tracked, Settlement.ACK)
        deliver(payload, unacked)
        return 1 if payload["headers"].get("eta") else 0

    def _pass_over(self, position: SubscriberCursor, entry: Entry, unreadable: UnreadableMessageError) -> None:
        """Count a broadcast that cannot be read. The log has the first of each kind of error of a queue: there may be many."""
        self._session.service.unreadable += 1
        if position.report_every:
            # Publishers may wait for it.
            position.report_progress()
        kind = position.queue, type(unreadable.error)
        if kind not in self._logged:
            self._logged.add(kind)
            logger.error(
                "broadcast %s of exchange %r to queue %r cannot be read: it is passed over, as others like it (logged once)",
                entry[0].decode(), position.keys.exchange, position.queue,
                exc_info=unreadable, extra={"queue": position.queue, "exchange": position.keys.exchange},
            )  # fmt: skip
