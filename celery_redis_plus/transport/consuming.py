"""The part of a channel that consumes: consumers, the buffer of claimed messages, deliveries."""

from __future__ import annotations

import logging
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kombu.utils.uuid import uuid

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.registry import INTERESTED, NOT_INTERESTED, NOTIFIED, Consumer
from celery_redis_plus.broker.consumers.unacked import DeliveryState, Settlement
from celery_redis_plus.errors import InvalidArgument, ResourceLocked
from celery_redis_plus.transport.amqp_errors import as_channel_errors
from celery_redis_plus.transport.arguments import check_consumer_arguments
from celery_redis_plus.transport.broadcasting import UNREADABLE, Broadcasting
from celery_redis_plus.transport.delivered_message import Message, payload_of
from celery_redis_plus.transport.delivery_tracking import HEADER
from celery_redis_plus.transport.turns import Turns

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.claims import Batch
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage
    from celery_redis_plus.stored_message import Claimed
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.delivery_loop import DeliveryLoop
    from celery_redis_plus.transport.qos import QoS

logger = logging.getLogger(__name__)

#: A channel that has more messages in work does not count them for each claim.
COUNTED = 100
#: Consumer priorities go from minus this to this.
MAX_CONSUMER_PRIORITY = 1_000_000


class Consuming(Broadcasting):
    """Consumers of one channel."""

    session: BrokerConnection
    poller: DeliveryLoop
    qos: QoS
    closed: bool

    def _init_consuming(self) -> None:
        #: consumer tag -> queue
        self._consumer_queues: dict[str, str] = {}
        #: queue -> what its deliveries are handed to; in the order of consumption.
        self.consumed: dict[str, Callable[[dict[str, Any]], Any]] = {}
        #: queue -> the consumer as the server knows it.
        self.consumers: dict[str, Consumer] = {}
        #: queue -> the bell that wakes this channel's consumer of it.
        self.bells: dict[str, bytes] = {}
        #: queue -> when to look at it again by ourselves, on `clock`, in seconds: nobody rings then.
        self.later: dict[str, float] = {}
        #: Claimed and not delivered.
        self.buffer: deque[Claimed] = deque()
        self.turns = Turns(self.session.options.queue_order_strategy, self.consumed)
        #: Queues with a reason to claim from.
        self.hot = self.turns.hot
        #: Queues that were declared again, as the duties have noticed.
        self.redeclared: deque[str] = deque()
        self._no_ack: set[str] = set()
        #: Queues that were asked for single messages.
        self._getting: set[str] = set()
        self._init_broadcasting()
        #: How many of the messages delivered in this turn went to Celery's timer.
        self.timers_filled = 0
        #: Whoever is given a message begins it at once; else `Message.begin` is called when the work begins.
        self.begins_at_delivery = True

    def _check_open(self) -> None:
        raise NotImplementedError

    # -- consumers --------------------------------------------------------------------------------------------------------

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
        self._join(queue, tag, self._priority(queue, arguments), exclusive=exclusive)
        self._consumer_queues[tag] = queue

        def deliver(payload: dict[str, Any]) -> Any:
            message = Message(payload, channel=self)
            message.queue = queue
            if not no_ack:
                self.qos.append(message, message.delivery_tag)
            return callback(message) if callback is not None else None

        self.consumed[queue] = deliver
        if no_ack:
            self._no_ack.add(queue)
        else:
            self._no_ack.discard(queue)
        self.hot[queue] = None
        self._settles[queue] = not no_ack
        self.read_broadcasts(queue)
        # A loop that sleeps on other bells has to hear of this queue.
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

    def _join(self, queue: str, tag: str, priority: int, *, exclusive: bool) -> None:
        if queue in self.consumers:
            return
        session = self.session
        consumer = Consumer(
            session.new_consumer_id(), queue, tag, priority=priority, exclusive=exclusive, state=self._state_of(queue),
            on_redeclared=self._redeclared_by_others(queue),
        )  # fmt: skip
        known = session.queues.read(queue)
        session.claims.note(queue, managed=session.consumers.join(consumer, patient=True))
        self.consumers[queue] = consumer
        self._choose_bell(queue)
        if known is not None and known.arguments.max_unacked is not None:
            session.service.register.limited.add(queue)
        self._watch(queue, consumer)

    def _choose_bell(self, queue: str) -> None:
        """Listen to the bell that wakes this channel's consumer of a queue, by what the queue was declared with."""
        session, consumer = self.session, self.consumers[queue]
        declared = session.queues.arguments(queue)
        alone = declared is not None and declared.single_active
        self.bells[queue] = session.keys.queue(queue).wakeup_of(consumer.id if alone else str(consumer.priority or ""))

    def _redeclared_by_others(self, queue: str) -> Callable[[], None]:
        """Return what the duties call, which must not keep a channel alive that nobody else has any more."""
        channel = weakref.ref(self)

        def note() -> None:
            alive = channel()
            if alive is not None:
                alive.redeclared.append(queue)
                alive.session.waker.wake()

        return note

    def _watch(self, queue: str, consumer: Consumer | None = None) -> None:
        queues = self.session.queues
        declared = queues.arguments(queue)
        ttl_ms = None if declared is None else queues.ttl_ms(declared)
        service = self.session.service
        service.watched.add(queue, self.session.id if consumer is None else consumer.id, ttl_ms, consumer)
        service.start()

    def _state_of(self, queue: str) -> Callable[[], str]:
        """Return what tells the duties of a consumer's state, without keeping the channel alive."""
        reference = weakref.ref(self)

        def tell() -> str:
            channel = reference()
            if channel is None or not channel.qos.credit(len(channel.buffer), 1):
                return NOT_INTERESTED
            return NOTIFIED if queue in channel.hot else INTERESTED

        return tell

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. What it has claimed and nobody has seen goes back in place at once."""
        queue = self._consumer_queues.pop(consumer_tag, None)
        if queue is None or queue in self._consumer_queues.values():
            return
        self._end_consumer(queue)
        if not self.session.broken and not any(queue in channel.consumed for channel in self.poller.channels):
            self._unused_here(queue)

    def lose(self, queue: str) -> None:
        """End this channel's consumers of a queue that belongs to another connection by now."""
        self._consumer_queues = {tag: name for tag, name in self._consumer_queues.items() if name != queue}
        self._end_consumer(queue)
        self._leave_broadcasts(queue)

    def _end_consumer(self, queue: str) -> None:
        self.consumed.pop(queue, None)
        self.turns.forget(queue)
        self.later.pop(queue, None)
        self._no_ack.discard(queue)
        self.session.reader.unsubscribe(queue)
        if self.session.broken:
            return
        self.poller.claiming.ahead.finish()
        self._hand_back([message for message in self.buffer if message.queue == queue])
        consumer = self.consumers[queue]
        # In this order: the duties list it again, should they find it watched and not on the list.
        self.session.service.watched.remove(queue, consumer.id)
        self.session.consumers.leave(queue, consumer.id)
        del self.consumers[queue]

    def _unused_here(self, queue: str) -> None:
        """Note that this connection consumes the queue no more; an auto-delete queue goes with its last consumer."""
        session = self.session
        self._leave_broadcasts(queue)
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

    def _hand_back(self, messages: Iterable[Claimed]) -> None:
        """Give claimed messages that nobody has seen back, in place."""
        register = self.session.service.register
        gone = {message.tag for message in messages}
        if not gone:
            return
        self.buffer = deque(message for message in self.buffer if message.tag not in gone)
        held = [taken for tag in gone if (taken := register.settle(tag, Settlement.HAND_BACK)) is not None]
        self.session.settler.settle_or_order(held, Settlement.HAND_BACK)

    def forfeit(self, queue: str) -> None:
        """Give what is claimed from a queue and not delivered back: another consumer is the active one by now."""
        self._hand_back([message for message in self.buffer if message.queue == queue])

    # -- what the poller asks ---------------------------------------------------------------------------------------------

    def held(self, queues: Sequence[str]) -> Sequence[int]:
        """Return how many messages of each queue this channel has in work; nothing where it has too many to count."""
        delivered = self.qos.unsettled()
        if len(delivered) > COUNTED:
            return ()
        counts = Counter(self.session.service.register.queues_of(delivered))
        return [counts[queue] for queue in queues]

    def cool(self, queues: Iterable[str]) -> None:
        """Note that a claim looks at the queues: there is no other reason to, until it says so or a bell rings."""
        for queue in queues:
            self.hot.pop(queue, None)

    def claimed(self, batch: Batch, asked_at: float) -> None:
        """Take a claim's result: into the buffer, and what still has messages is hot."""
        for queue in batch.more:
            if queue in self.consumed:
                self.hot[queue] = None
        fresh = self.session.service.register.admit(batch.messages, self.session.id, asked_at)
        self.buffer.extend(self.turns.took(fresh))

    def warm_up(self) -> None:
        """Look at the queues with the next claim for which the time has come."""
        while self.redeclared:
            queue = self.redeclared.popleft()
            if queue in self.consumed:
                self._choose_bell(queue)
                self.hot[queue] = None
        if not self.later:
            return
        now = clock.now_s()
        for queue in [queue for queue, at in self.later.items() if at <= now]:
            del self.later[queue]
            if queue in self.consumed:
                self.hot[queue] = None
                if not self.qos.credit(len(self.buffer), 1):
                    # Somebody else shall look.
                    self.session.waiter.notify(self.bells[queue])

    def all_hot(self) -> None:
        """Look at every queue with the next claims."""
        self.hot.update(dict.fromkeys(self.consumed))

    def deliver_next(self) -> None:
        """Deliver the first buffered message."""
        claimed = self.buffer[0]
        session, queue = self.session, claimed.queue
        if not session.claims.may_deliver(self, queue):
            return
        held = session.service.register.find(claimed.tag)
        if held is not None and not self._may_begin(held):
            self.buffer.popleft()
            return
        deliver = self.consumed.get(queue)
        if deliver is None:
            self.buffer.popleft()
            self._give_back_unseen(claimed.tag)
            return
        payload = self._payload(claimed, held, begins=self.begins_at_delivery)
        # Only now: until it is delivered or gone, the buffer is what its hand-back looks at.
        self.buffer.popleft()
        if payload is None:
            return
        if held is not None:
            held.stage = DeliveryState.DELIVERED
        headers = payload["headers"]
        if HEADER in headers:
            session.tracking.delivered(headers, claimed.tag, queue)
        if queue in self._no_ack:
            self.qos.ack(claimed.tag)
        # Celery sends a task with an eta through its timer even when the eta has passed.
        if headers.get("eta"):
            self.timers_filled += 1
        deliver(payload)

    def _give_back_unseen(self, tag: str) -> None:
        held = self.session.service.register.settle(tag, Settlement.HAND_BACK)
        if held is not None:
            self.session.settler.post(held, Settlement.HAND_BACK)

    def _may_begin(self, held: UnackedMessage) -> bool:
        """Return whether a buffered message is still ours to deliver: not if we stood still, and others have it by now."""
        if held.stage is not DeliveryState.BUFFERED:
            # It came twice, and was delivered under its later claim.
            return False
        if self.session.leases.still_holds(held):
            return True
        self.session.service.register.confirm(held)
        return False

    def _payload(self, claimed: Claimed, held: UnackedMessage | None, *, begins: bool) -> dict[str, Any] | None:
        """Return what is delivered of a message, fetching a large body; None where there is nothing to deliver.

        Args:
            claimed: the message.
            held: the same in the register.
            begins: the work on it begins with its delivery.
        """
        # Before it is fetched and decoded: a body can kill the process that reads it, and that has to count as a failure.
        if held is not None and (begins or claimed.body is None):
            self.session.settler.begin(held)
        try:
            if claimed.body is None:
                claimed.body = self.session.claimer.fetch_body(claimed)
            if claimed.body is None:
                logger.warning("message %s of queue %r is gone: the queue was deleted, or expired", claimed.tag, claimed.queue)
                self.qos.ack(claimed.tag)
                return None
            return payload_of(claimed)
        except UNREADABLE:
            logger.exception("message %s of queue %r cannot be read: to the dead letters", claimed.tag, claimed.queue)
            self.qos.reject(claimed.tag)
            return None
