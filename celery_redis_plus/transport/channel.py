"""kombu's channel on our broker: a thin layer that gives each subject to its part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_redis_plus.broker.consumers.active_tasks import inactive
from celery_redis_plus.connection import forks
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS, channel_error
from celery_redis_plus.transport.declaring import Declaring
from celery_redis_plus.transport.delivered_message import Message
from celery_redis_plus.transport.publishing import Publishing
from celery_redis_plus.transport.qos import QoS
from celery_redis_plus.transport.settling import Settlements
from celery_redis_plus.transport.single_get import SingleGet

if TYPE_CHECKING:
    from celery_redis_plus.connection.persistent_connection import PersistentConnection
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
    from celery_redis_plus.transport.transport import Transport


class _Socket:
    """Celery finds the sockets that it bounds at shutdown by `channel.client.connection._sock` (`celery/utils/threads.py`)."""

    def __init__(self, commands: PersistentConnection) -> None:
        self._commands = commands

    @property
    def connection(self) -> Any:
        return self._commands.connection


class Channel(Publishing, SingleGet, Settlements, Declaring, virtual.Channel):
    """A channel; all channels of a connection share its session and its delivery_loop."""

    Message = Message
    QoS = QoS
    supports_fanout = True
    do_restore = True
    max_priority = 255

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        """Open a channel on `connection`, kombu's name for the transport."""
        self.session: BrokerConnection = connection.session
        self.delivery_loop: DeliveryLoop = connection.delivery_loop
        super().__init__(connection, **kwargs)
        self._init_consuming()
        # kombu's virtual channel encodes bodies to text; ours are bytes all the way.
        self.body_encoding = None
        self.client = _Socket(self.session.commands)
        self.subclient = _Socket(self.session.wakeup_connection)
        self.delivery_loop.add(self.queue_consumers)
        forks.on_fork_in_child(self)

    def _check_open(self) -> None:
        if self.closed and not self.session.commands.connected:
            # As py-amqp: kombu's retry opens a new connection for this, and repeats a channel's error on the same channel.
            raise ServerUnreachable(f"the channel was closed with its connection to {self.session.address.display()}")
        if self.closed:
            raise channel_error("the channel is closed; open a new one with connection.channel()", 504, "Channel")

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one message to this connection's consumers. Raises TimeoutError where none comes in time."""
        self._check_open()
        self.connection.drain_events(self.connection, timeout=timeout)

    def close(self) -> None:
        """Close the channel.

        What nobody has seen goes back at once, and so does what was delivered and will not be settled any more. Under Celery
        a channel also closes because its connection broke, while tasks of it run: those are kept until they settle.
        """
        if self.closed:
            return
        self.closed = True
        self.delivery_loop.discard(self.queue_consumers)
        session = self.session
        try:
            if session.broken:
                self._abandon()
            else:
                self.delivery_loop.fetcher.pending.finish()
                self._leave()
        except CONNECTION_ERRORS:
            session.abandon()
            self._abandon()
        finally:
            self._consumer_queues.clear()
            self.queue_consumers.clear()
            if self.connection is not None:
                self.connection.close_channel(self)

    def forked(self) -> None:
        """Leave what was delivered to the parent, in a child."""
        self._getting.clear()
        self.qos.forget()

    def _leave(self) -> None:
        """Close in order, while the server answers."""
        active_tasks = self.session.service.active_tasks
        delivered = self.qos.unsettled()
        # Before others may claim: what goes back comes before what is newer.
        if active_tasks is None:
            self.qos.give_back(delivered)
        elif active_tasks.is_stopping():
            self.qos.give_back(inactive(delivered, active_tasks))
        for tag in list(self._consumer_queues):
            self.basic_cancel(tag)
        for queue in self._getting:
            self.session.service.watched.remove(queue, self.session.id)
            self._leave_queue(queue)
        self.queue_consumers.release_buffered()
        # The session lives, and other channels use it: nothing but this channel's own deliveries is left to the duties.
        left = self.qos.unsettled()
        self.qos.forget()
        if left:
            self.session.service.unacked_messages.orphan(left)

    def _abandon(self) -> None:
        """Leave what a broken session has not settled to the duties, which outlive the connection."""
        delivered = self.qos.unsettled()
        session = self.session
        for queue in self._getting:
            session.service.watched.remove(queue, session.id)
        self.fanout_consumer.orphan()
        queues = {*self.queue_consumers.strike_off(), *self._getting}
        self.qos.forget()
        if queues or delivered:
            session.service.unacked_messages.abandon(session.id, queues, delivered)
