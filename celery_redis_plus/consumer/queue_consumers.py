"""The queues that one channel consumes: when to ask each of them, how much to claim, and what is claimed and not delivered."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.last_error import failure_by
from celery_redis_plus.broker.consumers.registry import INTERESTED, NOT_INTERESTED, NOTIFIED
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import DeliveryState, Unacked, UnackedMessage
from celery_redis_plus.consumer.delivery_tracking import HEADER
from celery_redis_plus.consumer.delivery_turns import Deliver, DeliveryTurns, OnCancel, Payload
from celery_redis_plus.consumer.queue_order import QueueOrder
from celery_redis_plus.consumer.restricted_queues import FetchRequest, FetchResult
from celery_redis_plus.errors import ConsumerCancelled
from celery_redis_plus.stored_message import UnreadableMessageError

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import Consumer
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.restricted_queues import RestrictedQueues
    from celery_redis_plus.stored_message import Claimed

logger = logging.getLogger(__name__)

#: Unacked messages of a channel above which they are not counted for each claim.
MAX_COUNTED_UNACKED = 100


class Credit(Protocol):
    """The prefetch limit of one channel, and the messages that it has delivered and not settled."""

    #: How many messages may be delivered and not settled; 0 is no limit.
    prefetch_count: int
    #: Nothing is claimed or delivered.
    suspended: bool

    @property
    def asks_worker(self) -> bool:
        """Whether Celery decides by what its worker has to do, and tells nobody when that changes."""

    @property
    def busy(self) -> bool:
        """Whether a message is delivered and not settled."""

    def can_consume(self) -> bool:
        """Return whether one more message may be delivered."""

    def credit(self, buffered: int, most: int) -> int:
        """Return how many messages, at `most`, a claim may take beside the `buffered` ones."""

    def unsettled(self) -> list[Unacked]:
        """Return the records of what is delivered and not settled, in the order of delivery."""

    def give_back(self, delivered: Iterable[Unacked]) -> None:
        """Give deliveries back, waiting for the server's answer. Raises as `CommandConnection.call` does."""

    def leave_unsettled(self) -> None:
        """Leave what is unsettled to others."""

    def leave_to_parent(self) -> None:
        """Do so in a forked child."""

    def ack(self, delivery_tag: str) -> None:
        """Settle a message as done."""

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle a message that was not done: to the dead letters, or back in place."""


class QueueConsumers:
    """The consumers of one channel. Nothing else changes their candidates, recheck times and buffer."""

    def __init__(
        self,
        session: ConsumerSession,
        restricted_queues: RestrictedQueues,
        credit: Credit,
        *,
        decode: Callable[[Claimed], Payload],
        on_end: Callable[[str], None],
    ) -> None:
        """Consume nothing yet.

        Args:
            session: of the connection, as far as it consumes.
            restricted_queues: claims from queues with rules.
            credit: the channel's prefetch limit.
            decode: makes a payload of a message; raises UnreadableMessageError where it cannot.
            on_end: called with the name of a queue whose consumer the server has ended; it calls `stop`.
        """
        self._session = session
        self._restricted_queues = restricted_queues
        self.credit = credit
        self._decode = decode
        self._on_end = on_end
        #: queue -> whom its deliveries are handed to; in the order of consumption.
        self.consumed: dict[str, DeliveryTurns] = {}
        #: queue -> the consumer as the server knows it.
        self.consumers: dict[str, Consumer] = {}
        #: queue -> the key of the wake-up of this channel's consumer of it.
        self.wakeups: dict[str, bytes] = {}
        #: filtered queue -> the key of another wake-up, of this consumer alone.
        self.own_wakeups: dict[str, bytes] = {}
        #: queue -> when to ask it again without a wake-up, on `clock`, in seconds.
        self.recheck_at: dict[str, float] = {}
        #: Claimed and not delivered.
        self.buffer: deque[UnackedMessage] = deque()
        self.order = QueueOrder(session.options.queue_order_strategy, self.consumed)
        #: Queues that there is a reason to claim from.
        self.candidates = self.order.candidates
        #: Queues that were declared again, as maintenance noticed.
        self._redeclared: deque[str] = deque()
        #: Queues that were deleted, as maintenance noticed.
        self._deleted: deque[str] = deque()
        #: Consumers that the server has ended, and that have not been told: tag, queue, their function for it.
        self.cancelled: deque[tuple[str, str, OnCancel | None]] = deque()
        #: The work on a message begins with its delivery; else the consumer calls `Message.begin`.
        self.begins_at_delivery = True

    # -- which queues ------------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Take a consumer that is in its queue's list on the server."""
        self.consumers[consumer.queue] = consumer
        self._choose_wakeup(consumer.queue)

    def start(self, queue: str, tag: str, deliver: Deliver, *, no_ack: bool, on_cancel: OnCancel | None = None) -> None:
        """Hand messages of `queue` to `deliver` from now on, in turn with other consumers of this channel.

        With `no_ack` a message that is delivered to it counts as settled.
        """
        turns = self.consumed.setdefault(queue, DeliveryTurns(self.credit.ack))
        turns.add_consumer(tag, deliver, no_ack=no_ack, on_cancel=on_cancel)
        self.candidates[queue] = None

    def _choose_wakeup(self, queue: str) -> None:
        """Choose the wake-up of this channel's consumer of a queue, by what the queue was declared with."""
        session, consumer = self._session, self.consumers[queue]
        declared = session.queues.arguments(queue)
        alone = declared is not None and declared.single_active
        of = session.keys.queue(queue)
        self.wakeups[queue] = of.wakeup_of(consumer.id if alone else str(consumer.priority or ""))
        if consumer.filter or (declared is not None and declared.filtered):
            self.own_wakeups[queue] = of.wakeup_of(consumer.id)
            self._restricted_queues.look_through(consumer)
        else:
            self.own_wakeups.pop(queue, None)

    def note_wakeup(self, wakeup: bytes) -> bool:
        """Ask the queues that a wake-up is of with the next claims; return whether there is one."""
        own = self.own_wakeups
        queues = [queue for queue in self.consumed if wakeup in (self.wakeups[queue], own.get(queue))]
        for queue in queues:
            if queue in own:
                self._restricted_queues.note_ready(self.consumers[queue], pass_on=wakeup == self.wakeups[queue])
        self.add_candidates(queues)
        return bool(queues)

    def note_redeclared(self, queue: str) -> None:
        """Note that a queue was declared again, by any process. From any thread."""
        self._redeclared.append(queue)
        self._session.waker.wake()

    def note_deleted(self, queue: str) -> None:
        """Note that a queue was deleted, by any process. From any thread."""
        self._deleted.append(queue)
        self._session.waker.wake()

    def tell_cancelled(self) -> None:
        """Tell the consumers that the server has ended: those with a function for it by that.

        Raises:
            ConsumerCancelled: one has none; the others are told with the next call.
        """
        while self.cancelled:
            tag, queue, on_cancel = self.cancelled.popleft()
            if on_cancel is None:
                raise ConsumerCancelled(
                    f"consumer {tag} is cancelled: queue {queue!r} was deleted, or declared again as one that it cannot consume"
                )
            on_cancel(tag)

    def state_of(self, queue: str) -> str:
        """Return the state of the consumer of a queue, as its list on the server has it. From any thread."""
        if not self.available(1):
            return NOT_INTERESTED
        return NOTIFIED if queue in self.candidates else INTERESTED

    def stop(self, queue: str) -> None:
        """Deliver no more of a queue. Claimed messages that the application has not seen go back in place at once."""
        self.consumed.pop(queue, None)
        self.order.forget(queue)
        for by_queue in (self.recheck_at, self.wakeups, self.own_wakeups):
            by_queue.pop(queue, None)
        if not self._session.broken:
            self.release_buffered(queue)

    def abandon(self) -> list[str]:
        """Drop the buffer of a broken connection; return the queues that something is claimed from."""
        queues = [*self.consumed, *(message.queue for message in self.buffer)]
        self.buffer.clear()
        return queues

    def clear(self) -> None:
        """Forget all consumers, of a channel that is closed."""
        for by_queue in (self.consumed, self.wakeups, self.own_wakeups, self.consumers):
            by_queue.clear()
        self.order.clear()

    def forked(self) -> None:
        """Leave consumers and messages to the parent, in a child; `consumed` stays, and so the next `drain_events` raises."""
        self.buffer.clear()
        self.consumers.clear()
        self.order.clear()
        self.recheck_at.clear()
        self.cancelled.clear()

    # -- what to claim -----------------------------------------------------------------------------------------------------

    def available(self, most: int) -> int:
        """Return how many messages, at `most`, may be claimed now."""
        return self.credit.credit(len(self.buffer), most)

    def next_request(self, credit: int) -> FetchRequest:
        """Return the request for up to `credit` messages that is made next."""
        queues = self.order.next_queues(few=bool(self._restricted_queues.names))
        unacked = self._count_unacked(queues) if credit > 1 else ()
        return FetchRequest(queues, credit, self.order.share, unacked, self.candidates, self.consumers)

    def _count_unacked(self, queues: Sequence[str]) -> Sequence[int]:
        """Return how many messages of each queue this channel has delivered; nothing where it has too many to count."""
        delivered = self.credit.unsettled()
        if len(delivered) > MAX_COUNTED_UNACKED:
            return ()
        counts = Counter(unacked.queue for unacked in delivered if isinstance(unacked, UnackedMessage))
        return [counts[queue] for queue in queues]

    def mark_checked(self, queues: Iterable[str]) -> None:
        """Note that a claim asks the queues: there is no other reason to, until its result says so or a wake-up comes."""
        for queue in queues:
            self.candidates.pop(queue, None)

    def take_claimed(self, result: FetchResult, asked_at: float) -> None:
        """Take the result of a claim that was made at `asked_at`, on `clock`, in seconds."""
        self._apply(result)
        fresh = self._session.service.unacked_messages.add(result.messages, self._session.id, asked_at)
        self.buffer.extend(self.order.took(fresh))

    def _apply(self, result: FetchResult) -> None:
        for queue in result.released:
            self.release_buffered(queue)
        for queue in result.ended:
            if queue in self.consumers:
                self._on_end(queue)
        if result.recheck_at:
            self.recheck_at.update(result.recheck_at)
        for queue in result.more:
            if queue in self.consumed:
                self.candidates[queue] = None

    def add_candidates(self, queues: Iterable[str]) -> None:
        """Ask those of the queues that are consumed here with the next claims."""
        self.candidates.update((queue, None) for queue in queues if queue in self.consumed)

    def add_due_candidates(self) -> None:
        """Ask the queues with the next claim for which the time has come; end the consumers of those that were deleted."""
        while self._redeclared:
            queue = self._redeclared.popleft()
            if queue in self.consumed:
                self._choose_wakeup(queue)
                self.candidates[queue] = None
        while self._deleted:
            queue = self._deleted.popleft()
            if queue in self.consumers:
                self._on_end(queue)
        if not self.recheck_at:
            return
        now = clock.now_s()
        for queue in [queue for queue, at in self.recheck_at.items() if at <= now]:
            del self.recheck_at[queue]
            if queue in self.consumed:
                self.candidates[queue] = None
                if not self.available(1):
                    # Another consumer shall look.
                    self._session.waiter.notify(self.wakeups[queue])

    def release_buffered(self, queue: str | None = None) -> None:
        """Release what is claimed from a queue, or from all of them, and not delivered: in place, unseen."""
        unacked_messages = self._session.service.unacked_messages
        gone = {message.tag for message in self.buffer if queue is None or message.queue == queue}
        if not gone:
            return
        self.buffer = deque(message for message in self.buffer if message.tag not in gone)
        released = [one for tag in gone if (one := unacked_messages.begin_settling(tag, Settlement.RELEASE_UNSEEN)) is not None]
        self._session.acknowledger.settle_or_defer(released, Settlement.RELEASE_UNSEEN)

    # -- deliveries --------------------------------------------------------------------------------------------------------

    def deliver_next(self) -> int:
        """Deliver the first buffered message; return how many entries that has added to Celery's timer."""
        unacked = self.buffer[0]
        queue = unacked.queue
        if queue in self._restricted_queues.names and not self._may_deliver(queue):
            return 0
        if not self._still_ours(unacked):
            self.buffer.popleft()
            return 0
        deliver = self.consumed.get(queue)
        if deliver is None:
            self.buffer.popleft()
            self._release_unseen(unacked.tag)
            return 0
        payload = self._read(unacked, begins=self.begins_at_delivery)
        # Only now: until it is delivered or gone, a release of the buffer has to find it.
        self.buffer.popleft()
        if payload is None or not self._session.service.unacked_messages.deliver(unacked):
            # It cannot be read, or another thread has given it back meanwhile.
            return 0
        headers = payload["headers"]
        if HEADER in headers:
            self._note_tracked(unacked, headers)
        deliver(payload, unacked)
        # Celery sends a task with an eta through its timer even when the eta has passed.
        return 1 if headers.get("eta") else 0

    def _note_tracked(self, unacked: UnackedMessage, headers: Mapping[str, Any]) -> None:
        """Tell the publisher of a tracked message that it is delivered."""
        unacked.tracked = self._session.publisher_session.tracking.delivered(headers, unacked.queue)

    def _may_deliver(self, queue: str) -> bool:
        """Return whether what is claimed from a queue with rules may be delivered; if not, it has been released."""
        consumer = self.consumers.get(queue)
        result = None if consumer is None else self._restricted_queues.check_active(consumer)
        if result is None:
            return True
        before = len(self.buffer)
        self._apply(result)
        return len(self.buffer) == before

    def _still_ours(self, unacked: UnackedMessage) -> bool:
        """Return whether a buffered message is still ours to deliver: not if we stood still, and others have it by now."""
        if unacked.state is not DeliveryState.BUFFERED:
            # It came twice, and was delivered under its later claim.
            return False
        leases = self._session.leases
        if unacked.is_certain(leases.certain_s) or leases.confirm(unacked):
            return True
        self._session.service.unacked_messages.discard(unacked)
        return False

    def _release_unseen(self, tag: str) -> None:
        unacked = self._session.service.unacked_messages.begin_settling(tag, Settlement.RELEASE_UNSEEN)
        if unacked is not None:
            self._session.acknowledger.post(unacked, Settlement.RELEASE_UNSEEN)

    def _read(self, unacked: UnackedMessage, *, begins: bool) -> Payload | None:
        """Return what is delivered of a message, fetching a large body; None where there is nothing to deliver.

        Args:
            unacked: the record of it.
            begins: the work on it begins with its delivery.
        """
        claimed = unacked.content
        if claimed is None:
            # Another thread settles it.
            return None
        # Before it is fetched and decoded: a body can kill the process that reads it, and that has to count as a failure.
        if begins or claimed.body is None:
            self._session.acknowledger.begin(unacked)
        try:
            if claimed.body is None:
                claimed.body = self._fetch_body(unacked, claimed)
            unacked.started = begins
            if claimed.body is None:
                logger.warning(
                    "message %s of queue %r is gone: the queue was deleted, or expired",
                    claimed.tag,
                    claimed.queue,
                    extra={"tag": claimed.tag, "queue": claimed.queue},
                )
                self.credit.ack(claimed.tag)
                return None
            return self._decode(claimed)
        except UnreadableMessageError as unreadable:
            logger.exception(
                "message %s of queue %r cannot be read: to the dead letters",
                claimed.tag,
                claimed.queue,
                extra={"tag": claimed.tag, "queue": claimed.queue},
            )
            self._session.service.unreadable += 1
            unacked.note_outcome("", failure_by(unreadable.error))
            self.credit.reject(claimed.tag)
            return None

    def _fetch_body(self, unacked: UnackedMessage, claimed: Claimed) -> bytes | None:
        """Return a large body. Raises as `ClaimCommands.fetch_body`.

        A body may be more than the server sends (`client-output-buffer-limit`): each connection that asks for it ends. So a
        connection that is lost here after an earlier claim of the message is a failed delivery, and the limit ends that.
        """
        try:
            return self._session.claim_commands.fetch_body(claimed)
        except (RedisConnectionError, RedisTimeoutError) as error:
            unacked_messages = self._session.service.unacked_messages
            unacked.note_outcome("", failure_by(error))
            if claimed.claim > 1 and unacked_messages.begin_settling(claimed.tag, Settlement.FAIL) is not None:
                unacked_messages.defer(unacked, Settlement.FAIL)
            raise

    # -- one message, without a consumer -----------------------------------------------------------------------------------

    def get(self, queue: str) -> tuple[Payload, UnackedMessage] | None:
        """Return the first message of a queue as if it were delivered, and its record: from the buffer, or claimed now.

        Raises:
            ResourceLocked, AccessRefused: as `RestrictedQueues.get`.
        """
        service = self._session.service
        unacked = self._take_buffered(queue)
        while (
            unacked is None or (payload := self._read_or_keep(unacked)) is None or not service.unacked_messages.deliver(unacked)
        ):
            asked_at = clock.now_s()
            found = self._restricted_queues.get(queue)
            if not found:
                return None
            added = service.unacked_messages.add(found, self._session.id, asked_at)
            unacked = added[0] if added else None
        if HEADER in payload["headers"]:
            self._note_tracked(unacked, payload["headers"])
        return payload, unacked

    def _read_or_keep(self, unacked: UnackedMessage) -> Payload | None:
        """Do as `_read`; the next call gets the message where that raises, as at an interrupt."""
        try:
            return self._read(unacked, begins=True)
        except BaseException:
            self.buffer.appendleft(unacked)
            raise

    def _take_buffered(self, queue: str) -> UnackedMessage | None:
        """Take the first message of the queue that was claimed for a consumer, and is not delivered yet."""
        for unacked in [unacked for unacked in self.buffer if unacked.queue == queue]:
            self.buffer.remove(unacked)
            if self._still_ours(unacked):
                return unacked
        return None
