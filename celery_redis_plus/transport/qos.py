"""What a channel has delivered and not settled, and how much more it may take."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from kombu.transport import virtual

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import Unacked, UnackedMessage
from celery_redis_plus.broker.fanout.subscriber_cursor import UnackedBroadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers


class SettlingChannel(Protocol):
    """A channel, as far as its prefetch limit and its settlements need it."""

    consumer_session: ConsumerSession
    delivery_loop: DeliveryLoop
    queue_consumers: QueueConsumers


class QoS(virtual.QoS):
    """Prefetch and settlement of one channel. Acks may come from any thread.

    `can_consume` asks for a delivery: Celery replaces it on the instance for `worker_disable_prefetch`. `credit` is for
    claims, and counts the channel's buffer as well.
    """

    def __init__(self, channel: SettlingChannel, prefetch_count: int = 0) -> None:
        """Start with nothing delivered. `prefetch_count` 0 is no limit."""
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        #: Nothing is claimed or delivered: `Channel.flow`.
        self.suspended = False
        #: Returns how many messages of lost connections count as well, as the worker still works on them; None: none does.
        self.count_carried: Callable[[], int] | None = None
        #: The records of what is delivered and not settled, by tag, in the order of delivery.
        self._delivered: dict[str, Unacked] = {}
        #: What the process had delivered that forked this one, and not settled.
        self._parents: dict[str, Unacked] = {}
        self._session = channel.consumer_session
        self._overfetch_factor = self._session.options.overfetch_factor

    def can_consume(self) -> bool:
        """Return whether one more message may be delivered."""
        limit = self.prefetch_count
        counted = len(self._delivered) if self.count_carried is None else self.counted()
        return not self.suspended and (not limit or counted < limit)

    def counted(self) -> int:
        """Return how many messages count against the prefetch count."""
        return self.delivered_count + (0 if self.count_carried is None else self.count_carried())

    @property
    def delivered_count(self) -> int:
        """How many messages are delivered and not settled."""
        return len(self._delivered)

    def has(self, unacked: Unacked) -> bool:
        """Return whether this channel has delivered it, and it is not settled."""
        return self._delivered.get(unacked.tag) is unacked

    def knows(self, tag: str) -> bool:
        """Return whether the message is delivered and not settled, over this channel or one of this process that is closed."""
        service = self._session.service
        return (
            tag in self._delivered
            or tag in self._parents
            or (service.unacked_messages.find(tag) or service.positions.find(tag)) is not None
        )

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages may be delivered; None is no limit."""
        limit = self.prefetch_count
        return max(limit - self.counted(), 0) if limit else None

    @property
    def asks_worker(self) -> bool:
        """Whether Celery has replaced `can_consume`: it looks at what its worker has to do."""
        return "can_consume" in self.__dict__

    def credit(self, buffered: int, most: int) -> int:
        """Return how many messages, at `most`, a claim may take beside the `buffered` ones."""
        if self.suspended:
            return 0
        if self.asks_worker:
            # Celery decides message by message (worker_disable_prefetch).
            return 1 if not buffered and self.can_consume() else 0
        limit = self.prefetch_count
        if not limit:
            return max(most - buffered, 0)
        counted = len(self._delivered) if self.count_carried is None else self.counted()
        return max(min(int(limit * self._overfetch_factor) - counted - buffered, most), 0)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivered message, as kombu's transports do."""
        self.deliver(message, self._session.service.unacked_messages.find(delivery_tag) or Unacked(delivery_tag))

    def deliver(self, message: Any, unacked: Unacked | None) -> None:
        """Note that a message is delivered; `unacked` is its record, None where it counts as settled."""
        if unacked is None:
            return
        unacked.message, unacked.deliveries = weakref.ref(message), self._delivered
        self._delivered[unacked.tag] = unacked

    def get(self, delivery_tag: str) -> Any:
        """Return a delivered message; KeyError where it is settled, or where the application has dropped it."""
        message = self._delivered[delivery_tag].alive
        if message is None:
            raise KeyError(delivery_tag)
        return message

    def ack(self, delivery_tag: str) -> None:
        """Settle a message as done; unknown tags, and second acks, change nothing."""
        self.settle(delivery_tag, Settlement.ACK)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle a message that was not done: back to its place, or to the dead letters."""
        self.settle(delivery_tag, Settlement.REQUEUE if requeue else Settlement.REJECT)

    def settle(self, tag: str, settlement: Settlement) -> None:
        """Settle a message or a broadcast; unknown tags, and second settlements, change nothing.

        Raises:
            NotAckedError: an ack could not leave before the work on its message, which goes back.
        """
        delivered = self._delivered.pop(tag, None) or self._parents.pop(tag, None)
        session, service = self._session, self._session.service
        unacked = service.unacked_messages.begin_settling(tag, settlement)
        if unacked is None:
            self._settle_unheld(tag, delivered, settlement)
            return
        leaves_first = settlement is Settlement.ACK and unacked.begins_here
        if leaves_first:
            session.acknowledger.ack_before_work(unacked)
        if unacked.tracked is not None:
            session.publisher_session.tracking.settled(unacked.tracked, settlement)
        if unacked.failed and settlement is Settlement.REQUEUE:
            settlement = unacked.settlement = Settlement.FAIL
        if leaves_first:
            if threading.get_ident() != session.loop_thread and self._wants_more():
                session.waker.wake()
        elif session.publisher_session.broken:
            service.unacked_messages.defer(unacked, settlement)
        elif threading.get_ident() != session.loop_thread:
            session.acknowledger.post(unacked, settlement)
            # The consumer sleeps in poll, perhaps for want of the credit that this settlement has freed.
            session.waker.wake()
        elif settlement is Settlement.ACK and self.channel.delivery_loop.may_batch_ack(service, unacked.queue):
            session.acknowledger.batch_ack(unacked)
        else:
            session.acknowledger.post(unacked, settlement)

    def _settle_unheld(self, tag: str, delivered: Unacked | None, settlement: Settlement) -> None:
        """Settle what this process does not hold: a message of the parent, a broadcast, a number that a program has made up."""
        session = self._session
        if session.publisher_session.inherited and isinstance(delivered, UnackedMessage):
            # The credit is the parent's, too: this process tells the server only.
            session.acknowledger.settle([delivered], settlement)
            return
        self._settle_broadcast(delivered or session.service.positions.find(str(tag)), settlement)

    def _settle_broadcast(self, unacked: Unacked | None, settlement: Settlement) -> None:
        """Settle what may be a broadcast, even after its channel was closed; any other tag is settled already."""
        session = self._session
        if not isinstance(unacked, UnackedBroadcast):
            return
        position = unacked.position
        if settlement is Settlement.REJECT:
            settled = session.reject_broadcast(unacked)
        else:
            settled = position.settle(unacked.tag, settlement)
        if not settled:
            return
        if unacked.tracked is not None:
            session.publisher_session.tracking.settled(unacked.tracked, settlement)
        if threading.get_ident() != session.loop_thread:
            session.waker.wake()

    def _wants_more(self) -> bool:
        """Return whether little work waits for threads: a loop that is woken takes the interpreter from them."""
        active_tasks = self._session.service.active_tasks
        return active_tasks is None or 4 * active_tasks.waiting_in_pool() <= self.prefetch_count

    def drop(self, tag: str) -> None:
        """Forget a delivered message that others hold by now."""
        self._delivered.pop(tag, None)
        unacked_messages = self._session.service.unacked_messages
        unacked = unacked_messages.find(tag)
        if unacked is not None:
            unacked_messages.discard(unacked)
        self._session.waker.wake()

    def leave(self, tag: str) -> None:
        """Have maintenance release a delivered message, once the server answers; nothing if another consumer has it."""
        self._delivered.pop(tag, None)
        unacked_messages = self._session.service.unacked_messages
        unacked = unacked_messages.begin_settling(tag, Settlement.RELEASE_SEEN)
        if unacked is not None:
            unacked_messages.defer(unacked, Settlement.RELEASE_SEEN)
        self._session.waker.wake()

    @property
    def busy(self) -> bool:
        """Whether something is delivered and not settled."""
        return bool(self._delivered)

    def unsettled(self) -> list[Unacked]:
        """Return the records of what is delivered and not settled, in the order of delivery."""
        return list(self._delivered.values())

    def up_to(self, tag: str) -> list[str]:
        """Return the tags of what was delivered before `tag` and is not settled, and `tag`; all where that is 0, as in AMQP."""
        tags = [unacked.tag for unacked in self.unsettled()]
        if not tag:
            return tags
        return tags[: tags.index(tag) + 1] if tag in tags else [tag]

    def leave_unsettled(self) -> None:
        """Leave what is unsettled to others."""
        self._delivered.clear()

    def leave_to_parent(self) -> None:
        """Leave what is unsettled to the parent, in a child; the child may settle it, as it may have done the work."""
        self._parents = dict(self._delivered)
        self._delivered.clear()

    def restore_unacked(self) -> list[Any]:
        """Give everything delivered and unsettled back, in place and without counting a failure."""
        self.give_back(self.unsettled())
        return []

    def give_back(self, delivered: Iterable[Unacked]) -> None:
        """Give some deliveries back, waiting for the server's answer. Raises as `CommandConnection.call` does."""
        unacked_messages = self._session.service.unacked_messages
        unacked = []
        for one in delivered:
            self._delivered.pop(one.tag, None)
            taken = unacked_messages.begin_settling(one.tag, Settlement.RELEASE_SEEN)
            if taken is not None:
                unacked.append(taken)
        self._session.acknowledger.settle_or_defer(unacked, Settlement.RELEASE_SEEN)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing: the channel's close decides what goes back."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the sweep recovers messages without a consumer."""
