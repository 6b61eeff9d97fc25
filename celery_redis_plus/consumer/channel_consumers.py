"""What one channel consumes: queues, broadcasts, and single messages that it gets; and what its end leaves to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.active_tasks import inactive
from celery_redis_plus.consumer.fanout_consumer import DecodeBroadcast, FanoutConsumer
from celery_redis_plus.consumer.queue_consumers import Deliver, Payload, QueueConsumers
from celery_redis_plus.errors import ResourceLocked

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage
    from celery_redis_plus.consumer.credit import Credit
    from celery_redis_plus.consumer.server_consumer import ServerConsumer
    from celery_redis_plus.stored_message import Claimed


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
            decode: makes a payload of a message; raises one of `UNREADABLE` where it cannot.
            decode_broadcast: the same for a stream's entry.
        """
        connection = self._connection = server.connection
        self._server = server
        self._credit = credit
        self.queues = QueueConsumers(connection, server.restricted_queues, credit, decode=decode, on_end=self._ended_by_server)
        self.fanout = FanoutConsumer(connection, credit, self.queues.consumed, decode=decode_broadcast)
        #: consumer tag -> queue
        self._queue_of: dict[str, str] = {}
        #: Queues that were asked for single messages.
        self._asked: set[str] = set()
        server.consumers.append(self.queues)

    def consume(
        self, queue: str, tag: str, deliver: Deliver, *, priority: int, exclusive: bool, no_ack: bool
    ) -> None:  # fmt: skip
        """Hand messages and broadcasts of `queue` to `deliver` from now on; arguments and errors as `QueueConsumers.consume`."""
        connection = self._connection
        connection.check_process()
        connection.ownership.check(queue)
        self.queues.consume(queue, tag, deliver, priority=priority, exclusive=exclusive, no_ack=no_ack)
        self._queue_of[tag] = queue
        self.fanout.consume(queue, no_ack=no_ack)
        # A loop that sleeps until other wake-ups has to hear of this queue.
        connection.waker.wake()

    def cancel(self, tag: str) -> None:
        """End a consumer. What it has claimed and is not delivered goes back in place at once."""
        queue = self._queue_of.pop(tag, None)
        if queue is None or queue in self._queue_of.values():
            return
        if not self._connection.broken:
            # Its messages go back with the others.
            self._server.fetcher.pending.finish()
        if queue not in self.queues.consumed:
            # The reply told that the queue belongs to another connection.
            return
        self.queues.end(queue)
        if not self._connection.broken and not self._server.consumes(queue):
            self._leave_queue(queue)

    def get(self, queue: str) -> tuple[Payload, UnackedMessage] | None:
        """Return the first message of a queue, and its record; None where there is none.

        Raises:
            AccessRefused: another consumer has the queue alone.
            ResourceLocked: it has a single active consumer, or belongs to another connection.
        """
        connection = self._connection
        connection.check_process()
        if queue not in self._asked and queue not in self.queues.consumed:
            connection.ownership.check(queue)
            # Its delayed and forgotten messages need somebody who looks after them, as a consumer would.
            self._asked.add(queue)
            connection.watch_queue(queue)
        return self.queues.get(queue)

    def _ended_by_server(self, queue: str) -> None:
        """Forget the consumers of a queue that belongs to another connection by now."""
        self._queue_of = {tag: name for tag, name in self._queue_of.items() if name != queue}
        self.fanout.leave(queue)

    def _leave_queue(self, queue: str) -> None:
        """Note that this connection consumes the queue no more; an auto-delete queue goes with its last consumer."""
        connection = self._connection
        self.fanout.leave(queue)
        # Not by what it was when this consumer began: a lasting queue may have been declared in its place.
        known = connection.queues.read(queue)
        if known is None or not known.arguments.auto_delete:
            return
        try:
            connection.ownership.check(queue)
        except ResourceLocked:
            return
        if connection.queues.delete(queue, if_unused=True, if_id=known.id) is not None:
            connection.disown(queue)
            connection.bindings.unbind_queues([queue])

    # -- the channel's end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back what will not be settled any more. Raises as `CommandConnection.call` does."""
        self._server.discard(self.queues)
        if self._connection.broken:
            self.abandon()
        else:
            self._server.fetcher.pending.finish()
            self._leave()

    def _leave(self) -> None:
        """Close in order, while the server answers."""
        service, credit = self._connection.service, self._credit
        active_tasks, delivered = service.active_tasks, credit.unsettled()
        # Before others may claim: what goes back comes before what is newer.
        if active_tasks is None:
            credit.give_back(delivered)
        elif active_tasks.is_stopping():
            credit.give_back(inactive(delivered, active_tasks))
        for tag in list(self._queue_of):
            self.cancel(tag)
        for queue in self._asked:
            service.watched.remove(queue, self._connection.id)
            self._leave_queue(queue)
        self.queues.release_buffered()
        # The session lives, and other channels use it: only this channel's own deliveries are left to maintenance.
        left = credit.unsettled()
        credit.forget()
        if left:
            service.unacked_messages.orphan(left)

    def abandon(self) -> None:
        """Leave what a broken session has not settled to maintenance, which outlives the connection."""
        service, session = self._connection.service, self._connection.id
        delivered = self._credit.unsettled()
        for queue in self._asked:
            service.watched.remove(queue, session)
        self.fanout.orphan()
        queues = {*self.queues.strike_off(), *self._asked}
        self._credit.forget()
        if queues or delivered:
            service.unacked_messages.abandon(session, queues, delivered)

    def clear(self) -> None:
        """Forget all consumers, of a channel that is closed."""
        self._queue_of.clear()
        self.queues.clear()

    def forked(self) -> None:
        """Leave what was delivered to the parent, in a child; the delivery loop does the same for the queues' consumers."""
        self._asked.clear()
        self._credit.forget()
