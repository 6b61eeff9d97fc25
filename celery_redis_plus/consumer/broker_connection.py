"""One kombu connection's use of the broker: its connections, and the broker's rooms over them."""

from __future__ import annotations

import itertools
import logging
import math
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import NoPermissionError, RedisError

from celery_redis_plus import signals
from celery_redis_plus.broker.arguments.limits import Limits
from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.consumers.leases import Leases
from celery_redis_plus.broker.consumers.processes import Processes
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR, Consumers
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.wakeup_waiter import WakeupWaiter
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.dead_letters.unroutable import REJECTED, UnroutableMessages
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.fanout.reader import FanoutReader
from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from celery_redis_plus.broker.flow_control.controller import WAITER_CHECK_S, FlowController, PublishTimeouts
from celery_redis_plus.broker.flow_control.publisher_queue import PublisherWaitQueue
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.delivery_store import DeliveryStore
from celery_redis_plus.broker.publishing.publisher import Publisher, Target
from celery_redis_plus.broker.publishing.replication import Replication
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection import forks
from celery_redis_plus.connection.blocking_connection import REPLY_GRACE_S, BlockingConnection
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.idle_timeout import idle_timeout_s
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.consumer.delivery_tracking import Tracking
from celery_redis_plus.consumer.owned_queues import OwnedQueues
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.process_services import service_for
from celery_redis_plus.stored_message import BODY_SEPARATOR, Outgoing

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import Consumer
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor, UnackedBroadcast
    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.keys import FanoutKeys
    from celery_redis_plus.maintenance.service import MaintenanceService
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Signs of life in the time after which the server closes idle connections; seconds between two of them before that time is
#: known, and at most.
KEEP_ALIVES, FIRST_KEEP_ALIVE_S, LONGEST_KEEP_ALIVE_S = 3, 1.0, 60.0


class Acceptance(Protocol):
    """What typed queues accept of the messages that this process publishes."""

    @property
    def queues(self) -> bool:
        """Whether any queue is checked by something that only Python has."""

    def check(self, queue: str, message: Mapping[str, Any], kind: str = "queue") -> None:
        """Raise MessageNotAccepted where no callable or model of the queue, or exchange, accepts the message."""

    def check_declared(self, queue: str, limits: Limits, outgoing: Outgoing, kind: str = "queue") -> None:
        """Raise MessageNotAccepted where no type that the queue, or exchange, was declared with matches."""


class BrokerConnection:
    """The life of one kombu connection, from connect to close or failure.

    `id` is the holder's name on the server: what a broken session has claimed can be told from what others have.
    """

    #: It was open: a failure after that is a lost connection.
    _has_worked = False

    def __init__(
        self,
        address: Address,
        options: Options,
        client_connection: object | None,
        *,
        acceptance: Acceptance,
        ignores_unroutable: Callable[[str], bool],
        lanes: Sequence[str] = (),
    ) -> None:
        """Connect.

        Args:
            address: where to.
            options: the transport's.
            client_connection: what will open the next connection, should this one break.
            acceptance: the check of what typed queues accept.
            ignores_unroutable: tells whether messages to an exchange may go nowhere, and are only counted then.
            lanes: the prefixes of all lanes, where there are several; this connection is to one.

        Raises:
            redis.exceptions.ConnectionError: and its kin, as `errors` names them.
        """
        self.id = secrets.token_hex(6)
        self._client_connection = None if client_connection is None else weakref.ref(client_connection)
        self.connector = Connector(address, options)
        #: Completed by the options.
        self.address = address = self.connector.address
        #: With the prefix that the address needs.
        self.options = options = self.connector.options
        self.keys = Keys(options.global_keyprefix)
        self._lanes = lanes
        self.commands = CommandConnection(self.connector, "commands", timeout=_timeouts(options), learns_id=True)
        self.wakeup_connection = BlockingConnection(self.connector, "wakeups", timeout=options.socket_timeout)
        self.stream_connection = BlockingConnection(self.connector, "streams", timeout=options.socket_timeout)
        self.waker = Waker()
        self.acceptance = acceptance
        self.ignores_unroutable = ignores_unroutable
        self._make_topology()
        self._make_publishing()
        self._make_consuming()
        self._make_broadcasts()
        #: The next claim is the first one of a queue, of which the server may not know yet that this process consumes it.
        self.unreported = False
        #: Seconds without traffic after which the connections are kept alive.
        self.keep_alive_s, self._knows_idle_timeout = FIRST_KEEP_ALIVE_S, False
        #: The thread whose event loop serves this session; None without one.
        self.loop_thread: int | None = None
        #: One of the connections has failed: what this session consumed is abandoned, and its consumers have to reconnect.
        self.broken = False
        #: If the session is dropped without a close, maintenance cleans up after it; not at the interpreter's exit.
        self._on_drop = weakref.finalize(self, self.service.dropped.note, self.id)
        self._on_drop.atexit = False
        #: This process is a child of the one that opened it. It may publish; what was claimed and consumed is the parent's.
        self.inherited = False
        forks.on_fork_in_child(self)
        for commands in (self.commands, self.wakeup_connection, self.stream_connection):
            commands.on_failure = self._failed
        try:
            self._check_server()
        except BaseException:
            # Whoever tries again makes a new session; only the collector would find this one's descriptors.
            self.commands.close()
            self.waker.close()
            raise
        signals.broker_reached(address.display())

    # -- its parts, each over the connections ----------------------------------------------------------------------------

    def _make_topology(self) -> None:
        options = self.options
        knowledge = self.service.knowledge
        self.bindings = Bindings(self.commands, self.keys, knowledge, self.fanout_keys)
        self.queues = Queues(
            self.commands,
            self.keys,
            transient_ttl_s=options.transient_queue_ttl,
            owner_timeout_s=options.consumer_heartbeat_timeout,
            event_log=EventLogSettings.of(options),
            knowledge=knowledge,
        )
        self.owned_queues = OwnedQueues(
            self.commands, self.keys, self.id, queues=self.queues, bindings=self.bindings, service=lambda: self.service
        )
        self.ownership = self.owned_queues.ownership

    def _make_publishing(self) -> None:
        options = self.options
        self.wait_queues = tuple(
            PublisherWaitQueue(self.commands, keys_of, self._capacity_connection, on_failure=self._failed)
            for keys_of in (self.keys.queue, self.fanout_keys)
        )
        timeouts = PublishTimeouts(options.publish_timeout, options.throttle_threshold)
        self.publisher = Publisher(
            self.commands,
            self.keys,
            dedup_window_s=options.publish_dedup_window,
            on_missing=self.queues.revive,
            replication=Replication(
                options.wait_replicas, options.wait_replicas_timeout, full_at=self.connector.missing_replicas
            ),
            bounded=FlowController(
                self.wait_queues[0], timeouts, check_type=self.acceptance.check_declared, consumes_itself=self._consumes_itself
            ),
            bounded_exchanges=FlowController(
                self.wait_queues[1],
                timeouts,
                check_type=partial(self.acceptance.check_declared, kind="exchange"),
                consumes_itself=self._subscribes_itself,
                on_long_wait=self._look_for_dead,
                kind="exchange",
            ),
        )
        self.unroutable = UnroutableMessages(self.publisher, keep=options.dead_letter_max)
        self.tracking = Tracking(DeliveryStore(self.commands, self.keys), self.unroutable)
        self.dead_letters = DeadLetters(self.commands, self.keys)

    def _make_consuming(self) -> None:
        options = self.options
        self.consumers = Consumers(
            self.commands, self.keys, timeout_s=options.consumer_heartbeat_timeout, process=self.service.name
        )
        self._processes = Processes(
            self.commands, self.keys, delivery_limit=options.delivery_limit, dead_letter_max=options.dead_letter_max
        )
        self._numbers = itertools.count(1)
        self.acknowledger = Acknowledger(
            self.commands,
            self.keys,
            self.service.unacked_messages,
            dead_letter_max=options.dead_letter_max,
            delivery_limit=options.delivery_limit,
            on_batched=self.service.ack_flush.schedule,
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
            self.service.unacked_messages,
            visibility_timeout_s=options.visibility_timeout,
            grace_s=options.connection_lost_grace,
            may_be_lost=self.service.own_process.may_be_lost,
        )

    def _make_broadcasts(self) -> None:
        options = self.options
        self.registry = SubscriberRegistry(
            self.commands, timeout_s=options.subscriber_timeout, max_age_s=options.stream_max_age, process=self.service.name
        )
        self.reader = FanoutReader(
            self.stream_connection, patterns=options.fanout_patterns, polling_interval_s=options.polling_interval
        )
        #: Where broadcasts go: exchange -> target.
        self.targets: dict[str, Target] = {}
        #: What is bound to fanout exchanges here: queue -> (exchange, routing key) -> the exchange's keys.
        self.bound: dict[str, dict[tuple[str, str], FanoutKeys]] = {}

    # -- its state ---------------------------------------------------------------------------------------------------------

    def _check_server(self) -> None:
        """Connect, and see that the server does more than to accept: one that loads its data refuses all but the handshake.

        Celery waits between two tries to connect, not between a connection and its first failure: a worker would try, and log,
        thirty times a second until a large data set is loaded.
        """
        self.commands.connect()
        if self.connector.finder is not None:
            self.connector.finder.wake_on_move(self.waker)
        if self.connector.credentials is not None:
            self.connector.credentials.wake_on_renewal(self.waker)
        try:
            # A process of another format, or with another number of lanes, would look for queues where they are not.
            self.service.knowledge.check_mark(self.commands.command("GET", self.keys.database_id))
        except NoPermissionError as error:
            logger.debug("%s: GET is refused: %s", self.address.display(), error)
        if self.options.cluster_lanes > 1:
            # The others have to find the number in each lane.
            self.service.knowledge.check_flush(self.commands, self.keys)
        self._has_worked = True
        self.service.note_connection()

    def _capacity_connection(self) -> BlockingConnection:
        return BlockingConnection(self.connector, "capacity", timeout=WAITER_CHECK_S + REPLY_GRACE_S)

    def _consumes_itself(self, consumers: Collection[str]) -> bool:
        return self.service.delivering.all_here({name.partition(CONSUMER_ID_SEPARATOR)[0] for name in consumers})

    def _subscribes_itself(self, subscribers: Collection[str]) -> bool:
        """Tell whether a subscriber is served by the thread that asks: one that does not go on holds all publishers up."""
        positions = (position for position in self.service.positions.all() if position.id in subscribers)
        owners = (position.owner for position in positions)
        return any(isinstance(owner, BrokerConnection) and self.service.delivering.all_here({owner.id}) for owner in owners)

    def _failed(self) -> None:
        """Note that one of the connections has failed: what its error leaves must not be closed in order."""
        worked = self._has_worked
        if worked and not self.broken:
            self.service.note_lost_connection()
        self.broken = True
        self.owned_queues.disown()
        if worked:
            signals.broker_lost(self.address.display())

    def new_consumer_id(self) -> str:
        """Return the id of one more consumer."""
        return f"{self.id}{CONSUMER_ID_SEPARATOR}{next(self._numbers)}"

    @property
    def client_connection(self) -> object | None:
        """The client's connection, which outlives sessions; None where it is gone."""
        return None if self._client_connection is None else self._client_connection()

    def check(self) -> None:
        """Raise ServerUnreachable where the session is broken, so that its consumers reconnect."""
        self.check_process()
        self.commands.check_master()
        if self.broken:
            raise ServerUnreachable(f"the connection to {self.address.display()} was lost")

    def check_process(self) -> None:
        """Raise ServerUnreachable where this process has inherited the session: it needs one of its own to consume."""
        if self.inherited:
            raise ServerUnreachable(
                f"the connection to {self.address.display()} is that of the process which forked this one; consume over a new one"
            )

    def forked(self) -> None:
        """Leave what was claimed and is to be settled to the parent, in a child."""
        self.inherited = self.broken = True
        self.__dict__.pop("service", None)
        # Another name than the parent's, in which nothing is claimed: what is given up under it concerns no process.
        self.id = secrets.token_hex(6)
        self.loop_thread = None
        self.waiter.reset()
        self.acknowledger.forget()

    @cached_property
    def service(self) -> MaintenanceService:
        """This process's service for the broker; `forked` forgets it, because a child has one of its own."""
        return service_for(self.connector, self.keys, self.options, self._lanes)

    def keep_alive(self) -> None:
        """Send something over connections without traffic, before the server closes them as idle. Raises as `connect` does.

        A consumer whose prefetch window is full waits without any command under way.
        """
        if self.broken or not self.commands.connected:
            return
        if not self._knows_idle_timeout:
            self._knows_idle_timeout = True
            timeout_s = idle_timeout_s(self.commands)
            self.keep_alive_s = math.inf if timeout_s == 0 else min(timeout_s / KEEP_ALIVES, LONGEST_KEEP_ALIVE_S)
        if self.commands.idle_s >= self.keep_alive_s and not self.commands.has_pending:
            self.commands.command("PING")
        for blocking in (self.wakeup_connection, self.stream_connection):
            blocking.keep_alive(self.keep_alive_s)

    def watch_queue(self, queue: str, consumer: Consumer | None = None) -> None:
        """Have the maintenance tasks look after a queue, for a consumer or for this connection."""
        declared = self.queues.arguments(queue)
        ttl_ms = None if declared is None else self.queues.ttl_ms(declared)
        service = self.service
        service.own_process.add(self.commands)
        user = self.id if consumer is None else consumer.id
        service.watched.add(queue, user, ttl_ms, consumer, declared=declared is not None)
        for one in (service, *service.others):
            one.start()
        self.unreported = True

    def have_ended(self, processes: Collection[str]) -> bool:
        """Return whether none of these processes has a connection left, so that what it has is free soon; see to that.

        Raises as `CommandConnection.call` does.
        """
        ended = self._processes.ended(processes)
        if ended:
            self.service.look_for_lost_processes()
        return ended.issuperset(processes)

    def _look_for_dead(self, exchange: str, subscribers: Collection[str]) -> None:
        """See that publishers do not wait for long for subscribers whose processes have ended. Raises as `have_ended`."""
        self.have_ended(self.registry.processes_of(self.fanout_keys(exchange), subscribers))

    def fanout_keys(self, exchange: str) -> FanoutKeys:
        """Return the keys of a fanout exchange."""
        return self.keys.fanout(exchange, self.options.stream_prefix(self.address.db))

    def target(self, exchange: str) -> Target:
        """Return where broadcasts to a fanout exchange go."""
        known = self.targets.get(exchange)
        if known is None:
            max_age_ms = int((self.options.stream_max_age or 0) * 1000)
            ignores = self.ignores_unroutable(exchange)
            known = Target(self.fanout_keys(exchange), self.options.stream_maxlen, max_age_ms, ignores_unroutable=ignores)
            self.targets[exchange] = known
        return known

    def exchange_limits(self, exchange: str) -> Limits | None:
        """Return the limits of a fanout exchange; None without any."""
        record = self.bindings.known(exchange)
        arguments = None if record is None else record.limits(exchange)
        return None if arguments is None else Limits.of(arguments)

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
        self.publisher.to_dead_letters(
            queue, Outgoing(envelope, body, rank=255), unacked.attempt, REJECTED, self.options.dead_letter_max
        )
        return True

    def report_progress(self, position: SubscriberCursor) -> None:
        """Tell publishers that may wait for a subscriber how far it is. If the connection is lost, its next heartbeat does."""
        if not self.broken:
            with suppress(RedisError, OSError):
                self.registry.report_progress(position)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections in order; what is owed is read first."""
        self._on_drop.detach()
        if not self.broken:
            self._unsubscribe_bound()
            self.acknowledger.flush()
        self.owned_queues.disown()
        self.wakeup_connection.close()
        self.stream_connection.close()
        for wait_queue in self.wait_queues:
            wait_queue.close()
        self.commands.close()
        self.waker.close()

    def _unsubscribe_bound(self) -> None:
        """End the subscriptions that were bound and never consumed; those that were have ended with their consumers."""
        positions = self.service.positions
        try:
            for position in positions.owned(self):
                positions.end(position, self.registry.unsubscribe)
            self.owned_queues.remove()
        except (RedisError, OSError) as error:
            logger.debug("closing: %s; the server forgets subscribers and exclusive queues by itself", error)

    def abandon(self) -> None:
        """Drop the connections after a failure: nothing is read, and nothing waits for a server that may not answer."""
        self.broken = True
        for commands in (self.wakeup_connection, self.stream_connection, self.commands):
            commands.abort()


def _timeouts(options: Options) -> float | None:
    """Return how long a reply to a command may take, in seconds: a publish waits for its replicas there."""
    if options.socket_timeout is None or not options.wait_replicas:
        return options.socket_timeout
    return options.socket_timeout + options.wait_replicas_timeout
