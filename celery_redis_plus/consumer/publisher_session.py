"""One kombu connection's use of the broker, as far as a publisher goes: its connection for commands, and the rooms over it."""

from __future__ import annotations

import logging
import secrets
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import NoPermissionError, RedisError

from celery_redis_plus import signals
from celery_redis_plus.broker.dead_letters.unroutable import UnroutableMessages
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.publishing.publisher import Publisher, Target
from celery_redis_plus.broker.publishing.replication import Replication
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection import forks
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.consumer.owned_queues import OwnedQueues
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.process_services import service_of, shared_state_for

if TYPE_CHECKING:
    from celery_redis_plus.broker.arguments.limits import Limits
    from celery_redis_plus.broker.consumers.processes import Processes
    from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
    from celery_redis_plus.broker.flow_control.controller import FlowController
    from celery_redis_plus.broker.flow_control.publisher_queue import PublisherWaitQueue
    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.blocking_connection import BlockingConnection
    from celery_redis_plus.consumer.delivery_tracking import Tracking
    from celery_redis_plus.keys import FanoutKeys, QueueKeys
    from celery_redis_plus.maintenance.service import MaintenanceService
    from celery_redis_plus.maintenance.shared_state import SharedState
    from celery_redis_plus.options import Options
    from celery_redis_plus.stored_message import Outgoing

logger = logging.getLogger(__name__)


class Acceptance(Protocol):
    """What typed queues accept of the messages that this process publishes."""

    @property
    def queues(self) -> bool:
        """Whether any queue is checked by something that only Python has."""

    def check(self, queue: str, message: Mapping[str, Any], kind: str = "queue") -> None:
        """Raise MessageNotAccepted where no callable or model of the queue, or exchange, accepts the message."""

    def check_declared(self, queue: str, limits: Limits, outgoing: Outgoing, kind: str = "queue") -> None:
        """Raise MessageNotAccepted where no type that the queue, or exchange, was declared with matches."""


class ConsumingPart(Protocol):
    """What consumes over a session, as far as the session's end concerns it."""

    def close(self) -> None:
        """Settle what waits, and close its connections in order."""

    def abort(self) -> None:
        """Drop its connections after a failure."""

    def forked(self) -> None:
        """Leave what was claimed to the parent, in a child."""


class PublisherSession:
    """The life of one kombu connection, from connect to close or failure.

    What a consumer needs besides is a `ConsumerSession`, made over this one when it consumes. `id` is the holder's name on the
    server: what a broken session has claimed can be told from what others have.
    """

    #: It was open: a failure after that is a lost connection.
    _has_worked = False
    #: What consumes over it.
    consumer: ConsumingPart | None = None

    def __init__(
        self,
        address: Address,
        options: Options,
        client_connection: object | None,
        *,
        acceptance: Acceptance,
        ignores_unroutable: Callable[[str], bool],
    ) -> None:
        """Connect.

        Args:
            address: where to.
            options: the transport's.
            client_connection: what will open the next connection, should this one break.
            acceptance: the check of what typed queues accept.
            ignores_unroutable: tells whether messages to an exchange may go nowhere, and are only counted then.

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
        self.commands = CommandConnection(self.connector, "commands", timeout=_timeouts(options), learns_id=True)
        self.commands.on_failure = self.fail
        self.acceptance = acceptance
        self.ignores_unroutable = ignores_unroutable
        self._make_topology()
        self._make_publishing()
        #: One of the connections has failed: what this session consumed is abandoned, and its consumers have to reconnect.
        self.broken = False
        #: This process is a child of the one that opened it. It may publish; what was claimed and consumed is the parent's.
        self.inherited = False
        forks.on_fork_in_child(self)
        try:
            self._check_server()
        except BaseException:
            # Whoever tries again makes a new session; only the collector would find this one's descriptors.
            self.commands.close()
            raise
        signals.broker_reached(address.display())

    # -- its parts, each over the connection -------------------------------------------------------------------------------

    def _make_topology(self) -> None:
        options, topology = self.options, self.shared.topology
        self.bindings = Bindings(self.commands, self.keys, topology, self.fanout_keys)
        self.queues = Queues(
            self.commands,
            self.keys,
            transient_ttl_s=options.transient_queue_ttl,
            owner_timeout_s=options.consumer_heartbeat_timeout,
            event_log=EventLogSettings.of(options),
            topology=topology,
            on_mismatch=options.on_mismatch,
        )
        self.owned_queues = OwnedQueues(
            self.commands,
            self.keys,
            self.id,
            queues=self.queues,
            bindings=self.bindings,
            topology=topology,
            service=lambda: self.service,
        )
        self.ownership = self.owned_queues.ownership

    def _make_publishing(self) -> None:
        options = self.options
        self.publisher = Publisher(
            self.commands,
            self.keys,
            dedup_window_s=options.publish_dedup_window,
            on_missing=self.queues.revive,
            replication=Replication(
                options.wait_replicas, options.wait_replicas_timeout, full_at=self.connector.missing_replicas
            ),
            bounded=lambda: self._flow_controller(self.keys.queue, self._consumes_itself),
            bounded_exchanges=lambda: self._flow_controller(
                self.fanout_keys, self._subscribes_itself, on_long_wait=self._look_for_dead, kind="exchange"
            ),
        )
        #: Where its publishers wait for room.
        self.wait_queues: list[PublisherWaitQueue] = []
        self.unroutable = UnroutableMessages(self.publisher, keep=options.dead_letter_max)
        #: Where broadcasts go: exchange -> target.
        self.targets: dict[str, Target] = {}

    # -- what few publishers need: loaded and made at first use ------------------------------------------------------------

    def _flow_controller(
        self,
        keys_of: Callable[[str], QueueKeys | FanoutKeys],
        consumes_itself: Callable[[Collection[str]], bool],
        *,
        kind: str = "queue",
        on_long_wait: Callable[[str, Collection[str]], object] = lambda *_: None,
    ) -> FlowController:
        """Return what publishes into queues, or exchanges, that have limits."""
        from celery_redis_plus.broker.flow_control.controller import FlowController, PublishTimeouts
        from celery_redis_plus.broker.flow_control.publisher_queue import PublisherWaitQueue

        wait_queue = PublisherWaitQueue(self.commands, keys_of, self._capacity_connection, on_failure=self.fail)
        self.wait_queues.append(wait_queue)
        return FlowController(
            wait_queue,
            PublishTimeouts(self.options.publish_timeout, self.options.throttle_threshold),
            check_type=self.acceptance.check_declared,
            consumes_itself=consumes_itself,
            on_long_wait=on_long_wait,
            kind=kind,
        )

    @fork_safe_property
    def tracking(self) -> Tracking:
        """Tracked deliveries."""
        from celery_redis_plus.broker.publishing.delivery_store import DeliveryStore
        from celery_redis_plus.consumer.delivery_tracking import Tracking

        return Tracking(DeliveryStore(self.commands, self.keys), self.unroutable)

    @fork_safe_property
    def registry(self) -> SubscriberRegistry:
        """The subscribers of fanout exchanges."""
        from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry

        options = self.options
        return SubscriberRegistry(
            self.commands, timeout_s=options.subscriber_timeout, max_age_s=options.stream_max_age, process=self.shared.name
        )

    @fork_safe_property
    def _processes(self) -> Processes:
        from celery_redis_plus.broker.consumers.processes import Processes

        options = self.options
        return Processes(self.commands, self.keys, delivery_limit=options.delivery_limit, dead_letter_max=options.dead_letter_max)

    @fork_safe_property
    def shared(self) -> SharedState:
        """What this process shares on the broker; `forked` forgets it, because a child has its own."""
        return shared_state_for(self.connector, self.keys, self.options)

    @property
    def service(self) -> MaintenanceService:
        """This process's maintenance of the broker."""
        return service_of(self.shared)

    # -- its state ---------------------------------------------------------------------------------------------------------

    def _check_server(self) -> None:
        """Connect, and see that the server does more than to accept: one that loads its data refuses all but the handshake.

        Celery and kombu wait between two tries to connect, not between a connection and its first failure: a worker would try,
        and log, thirty times a second until a large data set is loaded, or a replica is a primary again.
        """
        self.commands.connect()
        if self.connector.is_refusing:
            self._try_to_write()
        topology = self.shared.topology
        try:
            # A process of another format, or with another number of shards, would look for queues where they are not.
            topology.check_mark(self.commands.command("GET", self.keys.database_id))
        except NoPermissionError as error:
            logger.debug("%s: GET is refused: %s", self.address.display(), error)
        self._has_worked = True
        self.shared.note_connection()

    def _try_to_write(self) -> None:
        """Raise what a write is refused by, where it still is: of a key that is nobody's, and has no effect."""
        try:
            self.commands.command("PEXPIRE", self.keys.client_wakeup(self.id), 1)
        except NoPermissionError as error:
            logger.debug("%s: PEXPIRE is refused: %s", self.address.display(), error)
        self.connector.note_write()

    def _capacity_connection(self) -> BlockingConnection:
        from celery_redis_plus.broker.flow_control.controller import WAITER_CHECK_S
        from celery_redis_plus.connection.blocking_connection import REPLY_GRACE_S, BlockingConnection

        return BlockingConnection(self.connector, "capacity", timeout=WAITER_CHECK_S + REPLY_GRACE_S)

    def _consumes_itself(self, consumers: Collection[str]) -> bool:
        service = self.shared.service
        return service is not None and service.consumes_here(consumers)

    def _subscribes_itself(self, subscribers: Collection[str]) -> bool:
        service = self.shared.service
        return service is not None and service.subscribes_here(subscribers)

    def fail(self) -> None:
        """Note that one of the connections has failed: what its error leaves must not be closed in order."""
        worked = self._has_worked
        if worked and not self.broken:
            self.shared.note_lost_connection()
        self.broken = True
        self.owned_queues.disown()
        if worked:
            signals.broker_lost(self.address.display())

    @property
    def client_connection(self) -> object | None:
        """The client's connection, which outlives sessions; None where it is gone."""
        return None if self._client_connection is None else self._client_connection()

    def check_open(self) -> None:
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
        self.__dict__.pop("shared", None)
        # Another name than the parent's, in which nothing is claimed: what is given up under it concerns no process.
        self.id = secrets.token_hex(6)
        if self.consumer is not None:
            self.consumer.forked()

    def have_ended(self, processes: Collection[str]) -> bool:
        """Return whether none of these processes has a connection left, so that what it has is free soon; see to that.

        Raises as `CommandConnection.call` does.
        """
        ended = self._processes.ended(processes)
        if ended:
            self.service.look_for_lost_processes()
        return ended.issuperset(processes)

    def look_at(self, processes: Collection[str]) -> bool:
        """Do as `have_ended`, and see that silent processes are noticed, too: somebody has to send heartbeats meanwhile."""
        self.service.look_for_lost_processes()
        return self.have_ended(processes)

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
        if arguments is None:
            return None
        from celery_redis_plus.broker.arguments.limits import Limits

        return Limits.of(arguments)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections in order; what is owed is read first."""
        if self.consumer is not None:
            self.consumer.close()
        if not self.broken:
            try:
                self.owned_queues.remove()
            except (RedisError, OSError) as error:
                logger.debug("closing: %s; the server forgets exclusive queues by itself", error)
        self.owned_queues.disown()
        for wait_queue in self.wait_queues:
            wait_queue.close()
        self.commands.close()

    def abandon(self) -> None:
        """Drop the connections after a failure: nothing is read, and nothing waits for a server that may not answer."""
        self.broken = True
        if self.consumer is not None:
            self.consumer.abort()
        self.commands.abort()


def _timeouts(options: Options) -> float | None:
    """Return how long a reply to a command may take, in seconds: a publish waits for its replicas there."""
    if options.socket_timeout is None or not options.wait_replicas:
        return options.socket_timeout
    return options.socket_timeout + options.wait_replicas_timeout
