"""The bootstep of a worker's consumer: what a Celery worker does beyond consuming when its broker is ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.exceptions import ImproperlyConfigured
from celery.worker.consumer import Tasks
from redis.exceptions import RedisError

from celery_redis_plus.connection.server_check import kind_and_version, parse_info
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.ack_policies import AckPolicies
from celery_redis_plus.integration.active_tasks import RunningTasks, count_carried, note_given
from celery_redis_plus.integration.app_connections import connections_of, warn_about_priorities
from celery_redis_plus.integration.batched_tasks import follow_batches
from celery_redis_plus.integration.bootstep import STEP
from celery_redis_plus.integration.early_acks import warn_about_early_acks
from celery_redis_plus.integration.graceful_stop import GracefulStop, release_waiting
from celery_redis_plus.integration.green_pidbox import reconnect_remote_control
from celery_redis_plus.integration.kombu_lists import KombuListTaker
from celery_redis_plus.integration.lease_guard import begin_in_pool, guard_without_putlocks, install_lease_guard
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.prefork_pool import install_prefork_guard
from celery_redis_plus.integration.rejected_tasks import install_traceback_cleaner
from celery_redis_plus.integration.request_sets import let_threads_change_requests
from celery_redis_plus.integration.requests import install_immediate_acks, install_request_class
from celery_redis_plus.integration.scheduled import install_inspect
from celery_redis_plus.integration.unhandled_messages import contain_unhandled
from celery_redis_plus.integration.worker_events import bound_worker_events
from celery_redis_plus.integration.worker_metrics import MetricsServer, serve_metrics
from celery_redis_plus.integration.worker_settlements import listen_to_children
from celery_redis_plus.maintenance.process_services import set_keeper
from celery_redis_plus.transport.transport import Transport
from celery_redis_plus.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.maintenance.service import MaintenanceService

logger = logging.getLogger(__name__)


class BrokerStep(bootsteps.StartStopStep):
    """Starts with the consumer, and again after each connection loss, when the tasks' queues are consumed already."""

    requires = (Tasks,)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._running = RunningTasks(parent)
        self._graceful_stop: GracefulStop | None = None
        #: That of the worker's connection.
        self._transport: Transport | None = None
        self._metrics: MetricsServer | None = None
        self._kombu_lists: KombuListTaker | None = None
        self._configured = STEP in parent.app.steps["consumer"]

    def include_if(self, parent: Any) -> bool:
        """Return whether the worker's broker is ours."""
        return isinstance(parent.conninfo.transport, Transport)

    def create(self, parent: Any) -> None:
        """Take part in how tasks' messages are settled; the consumer has not looked at its tasks yet.

        Raises:
            ImproperlyConfigured: the worker is to change the size of a pool that has only one.
        """
        _refuse_autoscale(parent.controller)
        _share_node_names(parent.app)
        connections = connections_of(parent.app)
        self._policies = policies = (None if connections is None else connections.ack_policies) or AckPolicies()
        let_threads_change_requests()
        reconnect_remote_control()
        bound_worker_events()
        listen_to_children(parent.pool)
        has_threads, begins_here = worker_compat.has_threads(parent.pool), not worker_compat.has_processes(parent.pool)
        install_request_class(parent.app, policies, waits_in_pool=has_threads, begins_here=begins_here)
        guard_without_putlocks(parent)
        follow_batches(parent)
        contain_unhandled(parent)
        # Before the pool starts its processes.
        install_traceback_cleaner()
        wrap(parent, "connect", _connect, parent)

    def start(self, parent: Any) -> None:
        """Tell the transport's maintenance tasks what runs here, extend `inspect`, and say which broker this is."""
        self._running.started()
        transport = parent.connection.transport
        if not isinstance(transport, Transport):
            # The next URL of a failover list is another broker.
            return
        self._transport = transport
        signals.worker_shutting_down.connect(self._wake_loop, sender=parent.hostname)
        set_keeper(self._running)
        install_prefork_guard(parent.pool)
        listen_to_children(parent.pool, parent.hub)
        install_immediate_acks(parent)
        install_lease_guard(parent)
        begin_in_pool(parent)
        transport.delivery_loop.set_worker(
            parent.hostname,
            pool_is_concurrent=not worker_compat.is_solo(parent.pool),
            check_shutdown=worker_compat.shutdown_check(),
        )
        install_inspect()
        self._limit_the_end(parent, transport)
        if parent.restart_count:
            count_carried(parent, self._running)
        if self._metrics is None:
            self._metrics = serve_metrics(transport.options)
        if self._kombu_lists is None and transport.options.take_from_kombu:
            self._kombu_lists = KombuListTaker(parent.app, lambda: list(parent.app.amqp.queues.consume_from))
        if transport.supports_native_delayed_delivery:
            transport.setup_native_delayed_delivery(parent.connection, list(parent.app.amqp.queues.consume_from))
        transport.each_broker(_name_server)
        if parent.restart_count == 0:
            warn_about_early_acks(parent.app, self._policies)
            if not self._configured:
                # A configured app has been warned with its first connection.
                warn_about_priorities(parent.app)

    def _limit_the_end(self, parent: Any, transport: Transport) -> None:
        if self._graceful_stop is None:
            self._graceful_stop = GracefulStop(parent, self._services, transport.options.graceful_timeout)

    def _services(self) -> list[MaintenanceService]:
        """Return those of the brokers that the worker consumes from."""
        return [] if self._transport is None else [broker.session.service for broker in self._transport.brokers]

    def _wake_loop(self, **_: Any) -> None:
        """Have a loop that sleeps look at what a signal has told the worker: its system call goes on after signals (PEP 475)."""
        if self._transport is not None:
            self._transport.delivery_loop.wake()

    def stop(self, parent: Any) -> None:
        """Return what waits in a worker that stops; called before each restart of the consumer as well."""
        release_waiting(parent, self._running)

    #: Of a cold shutdown.
    terminate = stop

    def shutdown(self, parent: Any) -> None:
        """Let go of the worker."""
        signals.worker_shutting_down.disconnect(self._wake_loop, sender=parent.hostname)
        if self._graceful_stop is not None:
            self._graceful_stop.disconnect()
        if self._metrics is not None:
            self._metrics.stop()
        if self._kombu_lists is not None:
            self._kombu_lists.stop()


def _share_node_names(app: Any) -> None:
    """Let a second worker of the same node name start, with Celery's warning, unless the app's settings say otherwise.

    Celery 5.7 declares the queue of a worker's remote control as exclusive. kombu's Redis transport never enforced that, so with
    it both workers run; with us the second one would end with a 405.
    """
    worker_compat.share_control_queue(app)


def _connect(connect: Callable[[], Any], consumer: Any) -> Any:
    """Connect a worker's consumer, whose pool has started, and which has not built its strategies yet."""
    note_given(consumer)
    connection = connect()
    if isinstance(connection.transport, Transport):
        connection.transport.serve_worker()
    return connection


def _name_server(broker: Transport) -> None:
    """Log the address, kind and version of a broker's server."""
    session = broker.session
    address = session.address if session.connector.finder is None else session.address.at_master(*session.commands.peer)
    try:
        kind = " ".join(kind_and_version(parse_info(session.commands.command("INFO", "server"))))
    except RedisError as error:
        # INFO may be forbidden; a lost connection is met by the next one who uses it.
        logger.debug("INFO is refused: %s", error)
        kind = "version unknown"
    logger.info("celery-redis-plus %s on %s%s, %s", __version__, broker.name, address.display(), kind)


def _refuse_autoscale(worker: Any) -> None:
    """Refuse what would end Celery's worker, or each of its messages, once there is work for a larger pool."""
    # A prefork pool has the method once it has started.
    grows = worker_compat.has_processes(worker.pool) or hasattr(worker.pool, "grow")
    if not grows and worker.autoscale and worker.max_concurrency > worker.min_concurrency:
        pool = type(worker.pool).__module__.rpartition(".")[2]
        raise ImproperlyConfigured(
            f"--autoscale={worker.max_concurrency},{worker.min_concurrency}: a pool of {pool} cannot grow; only those of "
            "prefork, gevent and eventlet can. Leave --autoscale out, and say --concurrency"
        )
