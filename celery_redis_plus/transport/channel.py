"""kombu's channel on our broker: a thin layer that gives each subject to its part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

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
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.delivery_loop import DeliveryLoop
    from celery_redis_plus.transport.transport import Transport


class _Socket:
    """Celery finds the sockets that it bounds at shutdown by `channel.client.connection._sock` (`celery/utils/threads.py`)."""

    def __init__(self, commands: PersistentConnection) -> None:
        self._commands = commands

    @property
    def connection(self) -> Any:
        return self._commands.connection


class Channel(Publishing, SingleGet, Settlements, Declaring, virtual.Channel):
    """A channel; all channels of a connection share its session and its poller."""

    Message = Message
    QoS = QoS
    supports_fanout = True
    do_restore = True
    max_priority = 255

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        """Open a channel on `connection`, kombu's name for the transport."""
        self.session: BrokerConnection = connection.session
        self.poller: DeliveryLoop = connection.poller
        self._init_consuming()
        super().__init__(connection, **kwargs)
        # kombu's virtual channel encodes bodies to text; ours are bytes all the way.
        self.body_encoding = None
        self.client = _Socket(self.session.commands)
        self.subclient = _Socket(self.session.wakeup_connection)
        self.poller.add(self)

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
        self.poller.discard(self)
        session = self.session
        try:
            if session.broken:
                self._abandon()
            else:
                self.poller.claiming.ahead.finish()
                self._leave()
        except CONNECTION_ERRORS:
            session.abandon()
            self._abandon()
        finally:
            self._consumer_queues.clear()
            self.consumed.clear()
            self.consumers.clear()
            self.turns.clear()
            if self.connection is not None:
                self.connection.close_channel(self)

    def forked(self) -> None:
        """Leave consumers and messages to the parent, in a child; `consumed` stays, and so the next `drain_events` raises."""
        self.buffer.clear()
        self.consumers.clear()
        self.turns.clear()
        self.later.clear()
        self._getting.clear()
        self.open_broadcasts.clear()
        self.qos.forget()

    def _leave(self) -> None:
        """Close in order, while the server answers."""
        keeper = self.session.service.keeper
        delivered = self.qos.unsettled()
        # Before others may claim: what goes back comes before what is newer.
        if keeper is None:
            self.qos.give_back(list(delivered))
        elif keeper.stopping():
            self.qos.give_back([tag for tag, message in delivered.items() if not keeper.keeps(message, 0.0)])
        for tag in list(self._consumer_queues):
            self.basic_cancel(tag)
        for queue in self._getting:
            self.session.service.watched.remove(queue, self.session.id)
            self._unused_here(queue)
        self._hand_back(list(self.buffer))
        # The session lives, and other channels use it: nothing but this channel's own deliveries is left to the duties.
        left = self.qos.unsettled()
        self.qos.forget()
        if left:
            self.session.service.register.set_adrift(left)

    def _abandon(self) -> None:
        """Leave what a broken session has not settled to the duties, which outlive the connection."""
        delivered = self.qos.unsettled()
        session = self.session
        queues = {*self.consumed, *self._getting, *(message.queue for message in self.buffer)}
        for queue, consumer in self.consumers.items():
            session.service.consumer_heartbeats.deregister(queue, consumer.id)
            session.service.watched.remove(queue, consumer.id)
        for queue in self._getting:
            session.service.watched.remove(queue, session.id)
        self._orphan_broadcasts(delivered)
        self.buffer.clear()
        self.qos.forget()
        if queues or delivered:
            session.service.register.abandon(session.id, queues, delivered)
