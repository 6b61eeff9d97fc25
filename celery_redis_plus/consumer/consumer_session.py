"""One kombu connection's use of the broker, as far as a consumer goes: what it needs beside its `PublisherSession`."""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.consumers.leases import Leases
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR, Consumers
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.wakeup_waiter import WakeupWaiter
from celery_redis_plus.broker.dead_letters.unroutable import REJECTED
from celery_redis_plus.broker.fanout.reader import FanoutReader
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.connection.idle_timeout import idle_timeout_s
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.stored_message import BODY_SEPARATOR, Outgoing

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import Consumer
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor, UnackedBroadcast
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.keys import FanoutKeys
    from celery_redis_plus.maintenance.service import MaintenanceService

logger = logging.getLogger(__name__)

#: Signs of life in the time after which the server closes idle connections; seconds between two of them before that time is
#: known, and at most.
KEEP_ALIVES, FIRST_KEEP_ALIVE_S, LONGEST_KEEP_ALIVE_S = 3, 1.0, 60.0
#: A read of streams waits for so many times `polling_interval`: each broadcast wakes it, and where the peer has gone silent the
#: session ends with the wait for messages. Less than `health_check_interval`, or a PING would go before each read.
STREAM_POLLS = 2


class ConsumerSession:
    """What a session consumes with: it claims, settles, waits for wake-ups, and reads broadcasts."""

    def __init__(self, session: PublisherSession) -> None:
        """Consume over `session`, which closes it with itself. Its connections connect when they are used."""
        self.publisher_session = session
        self.id = session.id
        self.connector, self.commands = session.connector, session.commands
        self.keys, self.options = session.keys, session.options
        self.queues: Queues = session.queues
        self.bindings = session.bindings
        self.ownership, self.owned_queues = session.ownership, session.owned_queues
        self.waker = Waker()
        if self.connector.finder is not None:
            self.connector.finder.wake_on_move(self.waker)
        if self.connector.credentials is not None:
            self.connector.credentials.wake_on_renewal(self.waker)
        timeout_s = self.options.socket_timeout
        self.wakeup_connection = BlockingConnection(self.connector, "wakeups", timeout=timeout_s)
        self.stream_connection = BlockingConnection(self.connector, "streams", timeout=timeout_s)
        for connection in (self.wakeup_connection, self.stream_connection):
            connection.on_failure = session.fail
        self._make_claims()
        self._make_broadcasts()
        #: The next claim is the first one of a queue, of which the server may not know yet that this process consumes it.
        self.unreported = False
        #: Seconds without traffic after which the connections are kept alive.
        self.keep_alive_s, self._knows_idle_timeout = FIRST_KEEP_ALIVE_S, False
        #: The thread whose event loop serves this session; None without one.
        self.loop_thread: int | None = None
        #: If the session is dropped without a close, maintenance cleans up after it; not at the interpreter's exit.
        self._on_drop = weakref.finalize(self, self.service.dropped.note, self.id)
        self._on_drop.atexit = False
        # When it is whole: a fork at any moment before, by another thread, leaves the child a session that has not consumed.
        session.consumer = self

    # -- its parts, each over the connections ----------------------------------------------------------------------------

    def _make_claims(self) -> None:
        options, service = self.options, self.service
        self.consumers = Consumers(
            self.commands, self.keys, process=service.name, timeout_s=options.consumer_heartbeat_timeout, release=options.release
        )
        self._numbers = itertools.count(1)
        self.acknowledger = Acknowledger(
            self.commands,
            self.keys,
            service.unacked_messages,
            dead_letter_max=options.dead_letter_max,
            delivery_limit=options.delivery_limit,
            on_batched=service.ack_flush.schedule,
        )
        self.claim_commands = ClaimCommands(
            self.commands,
            self.keys,
            holder=self.id,
            visibility_timeout_s=options.visibility_timeout,
            acknowledger=self.acknowledger,
            delivery_limit=options.delivery_limit,
            dead_letter_max=options.dead_letter_max,
        )
        self.claim_commands.worker = options.client_name or f"{os.getpid()}@{socket.gethostname()}"
        self.waiter = WakeupWaiter(
            self.wakeup_connection,
            self.commands,
            wake=self.keys.client_wakeup(self.id),
            polling_interval_s=options.polling_interval,
        )
        self.leases = Leases(
            self.commands,
            self.keys,
            service.unacked_messages,
            visibility_timeout_s=options.visibility_timeout,
            grace_s=options.connection_lost_grace,
            may_be_lost=service.own_process.may_be_lost,
        )

    def _make_broadcasts(self) -> None:
        options = self.options
        self.registry = self.publisher_session.registry
        self.reader = FanoutReader(
            self.stream_connection, patterns=options.fanout_patterns, wait_s=STREAM_POLLS * options.polling_interval
        )
        #: What is bound to fanout exchanges here: queue -> (exchange, routing key) -> the exchange's keys.
        self.bound: dict[str, dict[tuple[str, str], FanoutKeys]] = {}

    @fork_safe_property
    def service(self) -> MaintenanceService:
        """This process's service for the broker; `forked` forgets it, because a child has one of its own."""
        return self.publisher_session.service

    # -- its state ---------------------------------------------------------------------------------------------------------

    @property
    def broken(self) -> bool:
        """Whether the session is: what asks for each message looks there."""
        return self.publisher_session.broken

    @property
    def client_connection(self) -> object | None:
        """The client's connection, which outlives sessions; None where it is gone."""
        return self.publisher_session.client_connection

    def new_consumer_id(self) -> str:
        """Return the id of one more consumer."""
        return f"{self.id}{CONSUMER_ID_SEPARATOR}{next(self._numbers)}"

    def forked(self) -> None:
        """Leave what was claimed and is to be settled to the parent, in a child."""
        self.id = self.publisher_session.id
        self.__dict__.pop("service", None)
        self.loop_thread = None
        self.waiter.reset()
        self.acknowledger.drop_batched()

    def keep_alive(self) -> None:
        """Send something over connections without traffic, before the server closes them as idle. Raises as `connect` does.

        A consumer whose prefetch window is full waits without any command under way.
        """
        if self.publisher_session.broken or not self.commands.connected:
            return
        if not self._knows_idle_timeout:
            self._knows_idle_timeout = True
            timeout_s = idle_timeout_s(self.commands)
            self.keep_alive_s = math.inf if timeout_s == 0 else min(timeout_s / KEEP_ALIVES, LONGEST_KEEP_ALIVE_S)
        if self.commands.idle_s >= self.keep_alive_s and not self.commands.has_pending:
            self.commands.command("PING")
        for blocking in (self.wakeup_connection, self.stream_connection):
            blocking.keep_alive(self.keep_alive_s)

    def announce(self, consumer: Consumer) -> None:
        """Have the server know the process of a consumer that may have its queue alone, before it joins.

        Else others would wait for one that is killed behind its join as for a silent one.
        """
        self._watch(consumer.queue, consumer.id)
        self.service.wait_until_reported()

    def watch_queue(self, queue: str, consumer: Consumer | None = None) -> None:
        """Have the maintenance tasks look after a queue, for a consumer or for this connection."""
        self._watch(queue, self.id if consumer is None else consumer.id, consumer)
        self.unreported = True

    def _watch(self, queue: str, user: str, consumer: Consumer | None = None) -> None:
        known = self.queues.known(queue)
        ttl_ms = None if known is None else self.queues.ttl_ms(known.arguments)
        service = self.service
        service.own_process.add_connection(self.commands)
        service.consumed.add(queue, user, ttl_ms, consumer, record_id=b"" if known is None else known.id)
        service.start()

    def reject_broadcast(self, unacked: UnackedBroadcast) -> bool:
        """End a broadcast that was not done, as a dead letter where its queue has an exchange for those. From any thread.

        Returns False where it is settled already. Raises as `Publisher.to_dead_letters` does; it stays unsettled then.
        """
        position = unacked.position
        if unacked.tracked is None and unacked.tag in position.open:
            # First: a broadcast that is settled is not delivered again, should this fail.
            position.dead_lettered += self._dead_letter_broadcast(unacked)
        if not position.settle(unacked.tag, Settlement.REJECT):
            return False
        if threading.get_ident() != self.loop_thread:
            self.waker.wake()
        return True

    def _dead_letter_broadcast(self, unacked: UnackedBroadcast) -> bool:
        """Give a rejected broadcast to the dead-letter exchange of its queue; return whether there is one."""
        queue = unacked.position.queue
        declared = self.queues.arguments(queue)
        if declared is None or declared.dead_letter_exchange is None:
            return False
        envelope, _, body = unacked.entry[1][3].partition(BODY_SEPARATOR)
        unacked.attempt = unacked.attempt or PublishAttempt()
        self.queues.ensure_swept_once(queue)
        self.publisher_session.publisher.to_dead_letters(
            queue, Outgoing(envelope, body, rank=255), unacked.attempt, REJECTED, self.options.dead_letter_max
        )
        return True

    def report_progress(self, position: SubscriberCursor) -> None:
        """Tell publishers that may wait for a subscriber how far it is. If the connection is lost, its next heartbeat does."""
        if not self.publisher_session.broken:
            with suppress(RedisError, OSError):
                self.registry.report_progress(position)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the subscriptions, settle what waits, and close the connections; the session closes the others."""
        self._on_drop.detach()
        if not self.publisher_session.broken:
            self._unsubscribe_bound()
            self.acknowledger.flush()
        self.wakeup_connection.close()
        self.stream_connection.close()
        self.waker.close()

    def _unsubscribe_bound(self) -> None:
        """End the subscriptions that were bound and never consumed; those that were have ended with their consumers."""
        positions = self.service.positions
        try:
            for position in positions.owned(self):
                positions.end(position, self.registry.unsubscribe)
        except (RedisError, OSError) as error:
            logger.debug("closing: %s; the server forgets subscribers by itself", error)

    def abort(self) -> None:
        """Drop the connections after a failure."""
        self.wakeup_connection.abort()
        self.stream_connection.abort()
