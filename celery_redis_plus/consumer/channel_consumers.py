"""What one channel consumes: queues, broadcasts, and single messages that it gets; and what its end leaves to others."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from celery_redis_plus.broker.consumers.active_tasks import inactive
from celery_redis_plus.broker.consumers.registry import NOT_INTERESTED, Consumer
from celery_redis_plus.broker.queue_failures import QueueFailures
from celery_redis_plus.consumer.fanout_consumer import DecodeBroadcast, FanoutConsumer
from celery_redis_plus.consumer.queue_browser import QueueBrowser
from celery_redis_plus.consumer.queue_consumers import Credit, QueueConsumers
from celery_redis_plus.errors import AccessRefused, InvalidArgument, NotAllowed, QueueNotFound, ResourceLocked, ServerUnreachable

if TYPE_CHECKING:
    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage
    from celery_redis_plus.consumer.delivery_turns import Deliver, OnCancel, Payload
    from celery_redis_plus.consumer.server_consumer import ServerConsumer
    from celery_redis_plus.stored_message import Claimed

logger = logging.getLogger(__name__)

#: Milliseconds for which an auto-delete queue for replies outlives its last consumer.
REPLIES_STAY_MS = 5_000


class ChannelConsumers:
    """The consumers of one channel, by their tags."""

    def __init__(
        self,
        server: ServerConsumer,
        credit: Credit,
        *,
        decode: Callable[[Claimed], Payload],
        decode_broadcast: DecodeBroadcast,
    ) -> None:
        """Consume nothing yet.

        Args:
            server: claims for the consumers, and delivers to them.
            credit: the channel's prefetch limit, and what it has delivered.
            decode: makes a payload of a message; raises UnreadableMessageError where it cannot.
            decode_broadcast: the same for a stream's entry.
        """
        session = self._session = server.session
        self._server = server
        self._failures = QueueFailures(session.commands, logger, "cannot be left in order")
        self._credit = credit
        self.queues = QueueConsumers(session, server.restricted_queues, credit, decode=decode, on_end=self._ended_by_server)
        self.fanout = FanoutConsumer(session, credit, self.queues.consumed, decode=decode_broadcast)
        #: consumer tag -> queue
        self._queue_of: dict[str, str] = {}
        #: consumer tag -> one that only looks.
        self._browsers: dict[str, QueueBrowser] = {}
        self._decode = decode
        #: Queues that were asked for single messages.
        self._asked: set[str] = set()
        server.consumers.append(self.queues)

    def consume(
        self, queue: str, tag: str, deliver: Deliver, *, priority: int, exclusive: bool, no_ack: bool, wanted: str = "",
        on_cancel: OnCancel | None = None,
    ) -> None:  # fmt: skip
        """Hand messages and broadcasts of `queue` to `deliver` from now on.

        Args:
            queue: its name.
            tag: the consumer's.
            deliver: gets each payload.
            priority: of the consumer.
            exclusive: consume the queue alone.
            no_ack: a delivered message counts as settled.
            wanted: which messages it takes, as `broker.arguments.header_filter` packs it; empty: all.
            on_cancel: called with the tag where the server ends the consumer; without it the loop raises ConsumerCancelled.

        Raises:
            NotAllowed: the tag is in use on this channel.
            InvalidArgument: `wanted` of a queue that is not filtered, or is bound to a fanout exchange; `wanted` or `priority`
                beside another one of this channel.
            AccessRefused: another consumer has the queue alone, or this one wants to and there are others.
            ResourceLocked: another connection declared it with `exclusive=True`.
        """
        session = self._session
        session.publisher_session.check_process()
        session.ownership.check(queue)
        self._check_tag(tag)
        if wanted:
            self._check_no_broadcasts("x-filter", queue)
        if queue not in self.queues.consumers:
            self._join(queue, tag, priority, exclusive=exclusive, wanted=wanted)
        else:
            self._check_beside(self.queues.consumers[queue], priority, exclusive=exclusive, wanted=wanted)
        self.queues.start(queue, tag, deliver, no_ack=no_ack, on_cancel=on_cancel)
        self._queue_of[tag] = queue
        self.fanout.consume(queue, no_ack=self.queues.consumed[queue].no_ack)
        # A loop that sleeps until other wake-ups has to hear of this queue.
        session.waker.wake()

    def browse(self, queue: str, tag: str, deliver: Callable[[Payload], Any]) -> None:
        """Hand copies of the ready messages of `queue` to `deliver` from now on; the queue does not notice.

        Raises:
            InvalidArgument: it is bound to a fanout exchange, as far as this connection knows.
            ResourceLocked: another connection declared it with `exclusive=True`.
            QueueNotFound: there is no such queue.
        """
        session = self._session
        session.publisher_session.check_process()
        self._check_no_broadcasts("x-browse", queue)
        session.ownership.check(queue)
        if session.queues.read(queue) is None:
            raise QueueNotFound(f"queue {queue!r} does not exist: there is nothing to browse")
        self._check_tag(tag)
        browser = QueueBrowser(
            session, queue, deliver, decode=self._decode, may_deliver=lambda: not self._credit.suspended
        )  # fmt: skip
        self._browsers[tag] = browser
        self._server.browsers.append(browser)
        session.waker.wake()

    def _check_tag(self, tag: str) -> None:
        """Raise NotAllowed where the tag is in use, as RabbitMQ does: its cancel would end one of the two."""
        if tag in self._queue_of or tag in self._browsers:
            raise NotAllowed(f"NOT_ALLOWED - consumer tag {tag!r} is in use on this channel; allowed is one for each consumer")

    def _check_beside(self, other: Consumer, priority: int, *, exclusive: bool, wanted: str) -> None:
        """Refuse a consumer that cannot share its queue with `other`, of the same channel: both are one for the server."""
        if exclusive or other.exclusive:
            raise AccessRefused(f"queue {other.queue!r} is consumed on this channel already, so no consumer can have it alone")
        for argument, own, theirs in (("x-filter", wanted, other.filter), ("x-priority", priority, other.priority)):
            if own != theirs:
                raise InvalidArgument(
                    f"argument {argument!r} of a consumer of queue {other.queue!r} differs from another one's on its channel; "
                    "allowed is one for each channel and queue"
                )

    def _check_no_broadcasts(self, argument: str, queue: str) -> None:
        """Raise InvalidArgument where this connection has bound the queue to a fanout exchange: it reads broadcasts for it."""
        for exchange in self.fanout.bound_to(queue):
            raise InvalidArgument(
                f"argument {argument!r} of a consumer of queue {queue!r}, which is bound to the fanout exchange {exchange!r}: it "
                "has no effect on broadcasts; allowed for queues without such a binding"
            )

    def _stop_browsing(self, tag: str) -> None:
        browser = self._browsers.pop(tag, None)
        if browser is not None:
            self._server.browsers.remove(browser)

    def _join(self, queue: str, tag: str, priority: int, *, exclusive: bool, wanted: str) -> None:
        """Enter a consumer into the queue's list on the server. Raises as `consume`."""
        session = self._session
        known = session.queues.read(queue)
        filtered = known is not None and known.arguments.filtered
        if wanted and not filtered:
            raise InvalidArgument(
                f"argument 'x-filter' of a consumer of queue {queue!r}, which was declared without 'x-filtered'; "
                "allowed for a queue with it"
            )
        if filtered and priority:
            raise InvalidArgument(
                f"argument 'x-priority' of a consumer of queue {queue!r} is {priority}, and the queue is filtered "
                "('x-filtered'); allowed there is 0"
            )
        # Maintenance calls these; they do not keep alive a channel that was dropped.
        channel = weakref.ref(self.queues)
        consumer = Consumer(
            session.new_consumer_id(), queue, tag, priority=priority, exclusive=exclusive, filter=wanted,
            state=lambda: NOT_INTERESTED if (alive := channel()) is None else alive.state_of(queue),
            on_redeclared=lambda: None if (alive := channel()) is None else alive.note_redeclared(queue),
            on_deleted=lambda: None if (alive := channel()) is None else alive.note_deleted(queue),
        )  # fmt: skip
        if exclusive or (known is not None and known.arguments.single_active):
            session.announce(consumer)
        try:
            restricted = session.consumers.join(consumer, have_ended=session.publisher_session.look_at)
        except BaseException:
            session.service.consumed.remove(queue, consumer.id)
            raise
        self._server.restricted_queues.note(queue, restricted=restricted)
        self.queues.add_consumer(consumer)
        if known is not None:
            session.service.unacked_messages.note_arguments(queue, known.arguments)
        session.watch_queue(queue, consumer)

    def _end(self, queue: str) -> None:
        """End the consumer of a queue. Raises as `CommandConnection.call` does; it has ended here then, too."""
        self.fanout.stop(queue)
        consumer = self.queues.consumers[queue]
        try:
            self.queues.stop(queue)
        finally:
            self._server.restricted_queues.forget(consumer, last=not self._server.consumes(queue))
            if not self._session.broken:
                self._deregister(queue)

    def _deregister(self, queue: str) -> None:
        """Take a consumer off its queue's list. Raises as `_end`; maintenance does it then, or `abandon`."""
        session, service = self._session, self._session.service
        consumer = self.queues.consumers[queue]
        # In this order: maintenance lists it again if it is consumed and not on the list.
        service.consumed.remove(queue, consumer.id)
        try:
            session.consumers.leave(queue, consumer.id)
        except RedisError:
            if not session.broken:
                del self.queues.consumers[queue]
                service.consumer_lists.deregister(queue, consumer.id)
                service.wake()
            raise
        del self.queues.consumers[queue]

    def cancel(self, tag: str) -> None:
        """End a consumer. What it has claimed and is not delivered goes back in place at once.

        On a connection that breaks here, as on one that is broken, the consumer ends too: what it leaves is maintenance's. So it
        is where the server refuses a part of it; the refusal is raised.
        """
        self._stop_browsing(tag)
        try:
            self._cancel(tag)
        except ServerUnreachable:
            # Celery 5.6 cancels in the handler of a cold shutdown's signal, and never stops where that raises. eventlet
            # runs the handler in its hub, where nothing may wait for a reply.
            if not self._session.broken:
                raise

    def _cancel(self, tag: str) -> None:
        """End a consumer. Raises as `_end` does."""
        queue = self._queue_of.pop(tag, None)
        if queue is None:
            return
        if queue in self._queue_of.values():
            if queue in self.queues.consumed:
                self.queues.consumed[queue].remove(tag)
            return
        try:
            if not self._session.broken:
                # Its messages go back with the others.
                self._server.fetcher.finish_pending()
        finally:
            # The reply may have told that the queue belongs to another connection.
            ends = queue in self.queues.consumed
            if ends:
                self._end(queue)
        if ends and not self._session.broken and not self._server.consumes(queue):
            self._leave_queue(queue)

    def suspend(self) -> None:
        """Give back what was claimed and not delivered; the credit keeps more from being claimed.

        Raises as `CommandConnection.call` does.
        """
        self._server.fetcher.finish_pending()
        self.queues.release_buffered()

    def get(self, queue: str) -> tuple[Payload, UnackedMessage] | None:
        """Return the first message of a queue, and its record; None where there is none.

        Raises:
            AccessRefused: another consumer has the queue alone.
            ResourceLocked: it has a single active consumer, or belongs to another connection.
        """
        session = self._session
        session.publisher_session.check_process()
        if queue not in self._asked and queue not in self.queues.consumed:
            session.ownership.check(queue)
            # Its delayed and forgotten messages need somebody who looks after them, as a consumer would.
            self._asked.add(queue)
            session.watch_queue(queue)
            known = session.queues.read(queue)
            if known is not None:
                session.service.unacked_messages.note_arguments(queue, known.arguments)
            session.service.wait_until_reported()
        return self.queues.get(queue)

    def _ended_by_server(self, queue: str) -> None:
        """End the consumers of a queue that was deleted, or declared again as one that they cannot consume.

        The loop tells them (`QueueConsumers.tell_cancelled`).
        """
        turns = self.queues.consumed.get(queue)
        self._end(queue)
        self._queue_of = {tag: name for tag, name in self._queue_of.items() if name != queue}
        self.fanout.leave(queue)
        self.queues.cancelled.extend((tag, queue, on_cancel) for tag, on_cancel in (turns.on_cancel if turns else {}).items())

    def _leave_queue(self, queue: str) -> None:
        """Note that this connection consumes the queue no more; an auto-delete queue goes with its last consumer.

        One for replies stays for `REPLIES_STAY_MS`: its client may be connecting again. Celery 5.6.3 cancels the consumer of its
        backend `rpc://` once a second, and consumes anew (celery/backends/asynchronous.py takes a timeout for a lost connection).
        """
        session = self._session
        self.fanout.leave(queue)
        # Not by what it was when this consumer began: a lasting queue may have been declared in its place.
        known = session.queues.read(queue)
        if known is None or not known.arguments.auto_delete:
            return
        try:
            session.ownership.check(queue)
        except ResourceLocked:
            return
        if self._is_for_replies(queue, known.arguments):
            session.queues.let_expire(queue, REPLIES_STAY_MS, known.id)
        elif session.queues.delete(queue, if_unused=True, if_id=known.id) is not None:
            session.owned_queues.forget(queue)
            session.bound.pop(queue, None)
            session.bindings.unbind_queues([queue])

    def _is_for_replies(self, queue: str, arguments: QueueArguments) -> bool:
        """Return whether clients that know a queue's name send to it, and it says for how long it may stay unused."""
        return "x-expires" in arguments.arguments and not arguments.exclusive and not self._session.service.topology.binds(queue)

    # -- the channel's end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back what will not be settled any more. Raises as `CommandConnection.call` does."""
        self._server.discard(self.queues)
        if self._session.broken:
            self.abandon()
        else:
            self._server.fetcher.finish_pending()
            self._leave()

    def _leave(self) -> None:
        """Close in order, while the server answers."""
        service, credit = self._session.service, self._credit
        active_tasks, delivered = service.active_tasks, credit.unsettled()
        # Before others may claim: what goes back comes before what is newer.
        if active_tasks is None:
            credit.give_back(delivered)
        elif active_tasks.is_stopping():
            credit.give_back(inactive(delivered, active_tasks))
        for tag, queue in list(self._queue_of.items()):
            self._contained(queue, self._cancel, tag)
        for queue in self._asked:
            service.consumed.remove(queue, self._session.id)
            self._contained(queue, self._leave_queue, queue)
        self.queues.release_buffered()
        # The session lives, and other channels use it: only this channel's own deliveries are left to maintenance.
        left = credit.unsettled()
        credit.leave_unsettled()
        if left:
            service.unacked_messages.orphan(left)

    def _contained(self, queue: str, leave: Callable[[str], None], what: str) -> None:
        """Call `leave(what)`; what the keys of `queue` hold keeps no other from being left."""
        try:
            leave(what)
        except ResponseError as error:
            self._failures.contain(error, queue)

    def abandon(self) -> None:
        """Leave what a broken session has not settled to maintenance, which outlives the connection."""
        service, session_id = self._session.service, self._session.id
        delivered = self._credit.unsettled()
        for queue in self._asked:
            service.consumed.remove(queue, session_id)
        self.fanout.orphan()
        consumers = self.queues.consumers
        for queue, consumer in consumers.items():
            service.consumed.remove(queue, consumer.id)
        queues = {*self.queues.abandon(), *consumers, *self._asked}
        self._credit.leave_unsettled()
        if queues or delivered:
            service.unacked_messages.abandon(session_id, queues, delivered)
        # After it: a single active consumer leaves when the messages are back.
        for queue, consumer in consumers.items():
            service.consumer_lists.deregister(queue, consumer.id)
        service.wake()

    def clear(self) -> None:
        """Forget all consumers, of a channel that is closed."""
        for tag in list(self._browsers):
            self._stop_browsing(tag)
        self._queue_of.clear()
        self.queues.clear()

    def forked(self) -> None:
        """Leave what was delivered to the parent, in a child; the delivery loop does the same for the queues' consumers."""
        self._asked.clear()
        self._credit.leave_to_parent()
