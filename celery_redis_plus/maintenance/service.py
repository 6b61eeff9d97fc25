"""The thread that runs the maintenance tasks, and what they and the consumers of a process share on one broker.

One `MaintenanceService` per process and broker outlives every channel and connection. A forked child
starts with none of its state, and never touches the parent's sockets or locks.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.leases import Leases
from celery_redis_plus.broker.consumers.processes import Processes
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR, Consumers
from celery_redis_plus.broker.consumers.unacked import UnackedMessages
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursors
from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from celery_redis_plus.broker.lanes.lanes import Lane, connect_lanes
from celery_redis_plus.broker.queues.ownership import Ownership, delete_queue
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.maintenance.ack_flush import AckFlush
from celery_redis_plus.maintenance.ack_timeouts import AbandonedDeliveries, AckTimeouts, OverdueDeliveries
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.consumer_lists import ConsumerLists
from celery_redis_plus.maintenance.consumer_timeouts import ConsumerTimeouts
from celery_redis_plus.maintenance.dead_letter_forwarder import DeadLetterForwarder
from celery_redis_plus.maintenance.dead_subscribers import DeadSubscribers
from celery_redis_plus.maintenance.delivering import Delivering
from celery_redis_plus.maintenance.dropped_sessions import DroppedSessions
from celery_redis_plus.maintenance.ended_event_logs import EndedEventLogs
from celery_redis_plus.maintenance.heartbeat import Heartbeat
from celery_redis_plus.maintenance.heartbeat_delays import HeartbeatDelays
from celery_redis_plus.maintenance.janitor import Janitor
from celery_redis_plus.maintenance.leader import Leadership
from celery_redis_plus.maintenance.lease_heartbeats import LeaseHeartbeats, interval_s
from celery_redis_plus.maintenance.lost_processes import LostProcesses
from celery_redis_plus.maintenance.master_check import MasterCheck
from celery_redis_plus.maintenance.own_process import OwnProcess
from celery_redis_plus.maintenance.process_end import ProcessEnd
from celery_redis_plus.maintenance.process_recovery import LostRoles
from celery_redis_plus.maintenance.reconnect_recovery import ReconnectRecovery
from celery_redis_plus.maintenance.redeclared_queues import RedeclaredQueues
from celery_redis_plus.maintenance.resting_queues import QueueCrowds
from celery_redis_plus.maintenance.runner import TaskRunner
from celery_redis_plus.maintenance.subscriber_heartbeats import SubscriberHeartbeats
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.maintenance.task_wakeups import TaskWakeups, WokenTasks
from celery_redis_plus.maintenance.topology_recovery import TopologyRecovery
from celery_redis_plus.maintenance.transient_queues import TransientQueues
from celery_redis_plus.maintenance.unconsumed_queues import UnconsumedQueues
from celery_redis_plus.maintenance.unconverted_processes import UnconvertedProcesses

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Seconds between two tries to reach a server that is unreachable: first, and at most.
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 1.0
#: Seconds without consumers after which the thread ends; a new consumer starts it again.
IDLE_END_S = 10.0
#: Seconds for which a first claim waits for the thread, which may be busy or unable to connect; and between two looks at it.
REPORT_PATIENCE_S, WORK_POLL_S = 0.25, 0.002
#: Seconds for which a process looks for lost ones after it was asked to.
LOOK_FOR_LOST_S = 10.0
#: Most seconds that the thread sleeps when nothing is due.
MAX_IDLE_S = 30.0


class MaintenanceService:
    """What a process that consumes does on one broker, beside its channels."""

    #: Those of the broker's other lanes. While this process consumes in one lane, it does the maintenance of all: a queue that no
    #: process consumes may be in any, and its messages expire, and go on when they are dead.
    others: Sequence[MaintenanceService] = ()
    _reachable = True
    #: Until when `flush` waits, on the monotonic clock, in seconds; None where it has not waited in vain.
    _flush_until: float | None = None
    _watched_version = -1
    #: The queues that this process sweeps: those that it consumes, and those that no process consumes; and of when they are.
    _swept: Collection[str] = ()
    _swept_as_of: tuple[int, list[str]] | None = None

    def __init__(
        self, connector: Connector, keys: Keys, options: Options, lanes: Sequence[str], *,
        name: str, topology: DeclaredTopology, reconnects: Callable[[], int],
    ) -> None:  # fmt: skip
        """Prepare; `start` starts the thread.

        Args:
            connector: opens its connections.
            keys: spells the keys.
            options: the transport's.
            lanes: the prefixes of all lanes, where there are several.
            name: the process's on the server.
            topology: what this process has declared.
            reconnects: returns how many connections were opened in place of one that had failed.
        """
        self._reconnects = reconnects
        self.unacked_messages = UnackedMessages()
        self.watched = ConsumedQueues()
        #: What this process has declared.
        self.knowledge = topology
        self.positions = SubscriberCursors(options.subscriber_timeout)
        #: Gives back what is left when the interpreter exits.
        self.process_end = ProcessEnd(connector, keys, options, self.unacked_messages, self.watched)
        self.name = name
        self._keys = keys
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._lock = lock_of(self)
        self._stopping = self._closed = False
        #: Which thread delivers messages of which sessions right now.
        self.delivering = Delivering()
        self._waker = Waker()
        self.unacked_messages.on_work = self._waker.wake
        self.watched.on_change = self._waker.wake
        if connector.credentials is not None:
            connector.credentials.wake_on_renewal(self._waker)
        commands = self._commands = CommandConnection(connector, "maintenance", timeout=options.socket_timeout, learns_id=True)
        blocking = BlockingConnection(connector, "timers", timeout=options.socket_timeout, learns_id=True)
        acknowledger = Acknowledger(
            commands, keys, self.unacked_messages, dead_letter_max=options.dead_letter_max, delivery_limit=options.delivery_limit
        )
        self._reconnect_recovery = ReconnectRecovery(commands, keys, self.unacked_messages, acknowledger)
        self._lease_heartbeats = LeaseHeartbeats(
            Leases(commands, keys, self.unacked_messages, visibility_timeout_s=options.visibility_timeout),
            self.unacked_messages,
            visibility_timeout_s=options.visibility_timeout,
        )
        crowds = QueueCrowds()
        queues = Queues(
            commands, keys, transient_ttl_s=options.transient_queue_ttl, owner_timeout_s=options.consumer_heartbeat_timeout,
            event_log=EventLogSettings.of(options), knowledge=self.knowledge,
        )  # fmt: skip
        fanout_keys = partial(keys.fanout, prefix=options.stream_prefix(connector.address.db))
        bindings = Bindings(commands, keys, self.knowledge, fanout_keys)
        registry = SubscriberRegistry(
            commands, timeout_s=options.subscriber_timeout, max_age_s=options.stream_max_age, process=self.name
        )
        roles = LostRoles(
            lambda exchange, process, page: registry.suspect(fanout_keys(exchange), process, page),
            Ownership(
                commands, keys, self.name, gone=self.knowledge.gone, remove=partial(delete_queue, queues, bindings)
            ).remove_with,
        )
        self._live_among_processes((commands, blocking), roles, options)
        self._lanes = connect_lanes(Lane(commands, keys, queues, bindings), connector, lanes) if lanes else None
        forwarder = DeadLetterForwarder(DeadLetters(commands, keys), queues, bindings, self._lanes)
        self._topology_recovery = TopologyRecovery(
            queues, bindings, self.watched, self.knowledge, on_flush=self.heartbeat.run_soon
        )
        self._sweeper = Sweeper(
            commands, keys, crowds, name=self.name, forward=forwarder.add,
            limits=SweepLimits(
                options.visibility_timeout, options.delivery_limit, options.dead_letter_max, options.dead_letter_ttl
            ),
            note_id=RedeclaredQueues(
                queues, self.knowledge, self.watched, self.unacked_messages, on_missing=self._topology_recovery.run_soon
            ).note_id,
        )  # fmt: skip
        self._transient_queues = TransientQueues(queues, self.watched, crowds, on_gone=self._topology_recovery.run_soon)
        dead_subscribers = DeadSubscribers(registry, bindings, fanout_keys, self._leadership)
        self._janitor = Janitor(queues, bindings, self.watched, on_unbound=dead_subscribers.forget)
        self._unconsumed_queues = UnconsumedQueues(queues)
        self.consumer_lists = ConsumerLists(
            Consumers(commands, keys, process=self.name, timeout_s=options.consumer_heartbeat_timeout),
            self.watched,
            self.unacked_messages,
            self.knowledge,
            crowds,
            timeout_s=options.consumer_heartbeat_timeout,
        )
        self._subscriber_heartbeats = SubscriberHeartbeats(registry, self.positions)
        #: What this process waits for; its thread runs while there is something.
        self.deliveries = AckTimeouts(connector, keys, options)
        #: Hears of acks that wait for others.
        self.ack_flush = AckFlush(self._waker.wake)
        #: Hears of sessions that were never closed.
        self.dropped = DroppedSessions(
            self.unacked_messages, self.watched, self.positions, self.consumer_lists, wake=self._waker.wake
        )
        #: All maintenance tasks, and those of them that fail.
        self.runner = TaskRunner(
            (
                self.dropped,
                # Until it has run, what a killed process had comes back after the visibility timeout.
                self.heartbeat,
                self._reconnect_recovery,
                ConsumerTimeouts(self.unacked_messages, acknowledger, self.positions),
                self._sweeper,
                forwarder,
                self._topology_recovery,
                self._transient_queues,
                self._subscriber_heartbeats,
                dead_subscribers,
                # Where a worker takes what they publish, no warning is needed.
                *([] if options.take_from_kombu else [UnconvertedProcesses(commands, keys, self.watched)]),
            ),
            first=(MasterCheck(commands), self._lease_heartbeats, self.consumer_lists, self.ack_flush),
            of_leader=(
                self._lost_processes,
                self._unconsumed_queues,
                self._janitor,
                EndedEventLogs(queues),
                AbandonedDeliveries(OverdueDeliveries(commands, keys, options)),
            ),
            leads=lambda: self._leadership.leads,
        )
        #: How often the thread had died, and messages that consumers could not read.
        self.thread_restarts = self.unreadable = 0
        #: Messages that a Celery worker could not handle since a task began.
        self.unhandled_in_a_row = 0
        self._heartbeat_delays = HeartbeatDelays(options.visibility_timeout)
        self._lease_heartbeats.on_late = self._late
        self._wakeups = TaskWakeups(
            blocking, commands, self._waker, name=self.name, keys=keys,
            tasks=WokenTasks(self._sweeper, self._unconsumed_queues, self._leadership),
        )  # fmt: skip

    def _live_among_processes(
        self, connections: tuple[CommandConnection, BlockingConnection], roles: LostRoles, options: Options
    ) -> None:  # fmt: skip
        keys = self._keys
        self._leadership = Leadership(options.connection_lost_grace)
        #: Which connections this process has.
        self.own_process = OwnProcess(
            connections,
            self.watched,
            self.unacked_messages,
            self.positions,
            grace_s=options.connection_lost_grace,
            heartbeat_s=interval_s(options.visibility_timeout),
            failing=lambda: self.runner.failing,
            consumes_elsewhere=lambda: any(service.watched.all() for service in self.others),
        )
        commands = connections[0]
        processes = Processes(commands, keys, delivery_limit=options.delivery_limit, dead_letter_max=options.dead_letter_max)
        #: Tells the server that this process lives, and learns whether it leads.
        self.heartbeat = Heartbeat(
            commands, processes, self.own_process, self._leadership, name=self.name,
            visibility_timeout_s=options.visibility_timeout, on_forgotten=self.note_flush,
        )  # fmt: skip
        self._lost_processes = LostProcesses(commands, processes, self.heartbeat, self._leadership, roles, name=self.name)

    # -- from the channels' threads ---------------------------------------------------------------------------------------

    @property
    def active_tasks(self) -> ActiveTasks | None:
        """Who decides about unsettled messages after a connection loss; None: they all go back."""
        return self._reconnect_recovery.active_tasks

    @active_tasks.setter
    def active_tasks(self, active_tasks: ActiveTasks | None) -> None:
        self._reconnect_recovery.active_tasks = active_tasks
        self._subscriber_heartbeats.active_tasks = active_tasks

    def start(self) -> None:
        """Make sure that the thread runs; not of a service that is closed, should a connection be left."""
        with self._lock:
            if self._closed:
                return
            self._stopping = False
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._live, name="celery-redis-plus-maintenance", daemon=True)
                self._thread.start()
        self._waker.wake()

    def look_for_lost_processes(self) -> None:
        """Have this process look for lost ones for `LOOK_FOR_LOST_S`: something here waits for what one of them has.

        From any thread.
        """
        self.own_process.look_for(LOOK_FOR_LOST_S)
        self.heartbeat.run_soon()
        self.start()

    def check(self) -> None:
        """See that the thread lives and keeps its times; start it again where it died. From any thread, every few seconds."""
        thread = self._thread
        if thread is not None and not thread.is_alive() and not self._stopping and self._pid == os.getpid():
            self.thread_restarts += 1
            logger.error(
                "the thread for heartbeats and timers has died; it is started again (%d times by now)", self.thread_restarts
            )
            self.start()
        self._heartbeat_delays.warn_while(self._lease_heartbeats.late_s if self._reachable else 0.0)

    def _late(self, late_s: float) -> None:
        name, took_s = self.runner.take_longest()
        if self._reachable:
            self._heartbeat_delays.warn_after(late_s, name, took_s)

    @property
    def late_heartbeats(self) -> int:
        """How often heartbeats came later than planned by more than an interval."""
        return self._heartbeat_delays.count

    def figures(self) -> dict[str, float]:
        """Return what is known of this process: `PROCESS_COUNTERS` and `PROCESS_GAUGES` of `record_fields`, by name."""
        return {
            "late_heartbeats": self.late_heartbeats,
            "thread_restarts": self.thread_restarts,
            "failed_tasks": self.runner.failed,
            "sweeps": self._sweeper.sweeps,
            "recoveries": self._sweeper.recovered + self._lost_processes.recovered,
            "unreadable_messages": self.unreadable,
            "redeliveries": self.unacked_messages.redelivered,
            "reconnects": self._reconnects(),
            "unacked_messages": len(self.unacked_messages),
            "leads": int(self._leadership.leads),
            "failing_tasks": len(self.runner.failing),
            "heartbeat_delay_seconds": self._lease_heartbeats.late_s,
            "fanout_lag_messages": self._subscriber_heartbeats.longest_lag,
        }

    def consumes_here(self, consumers: Collection[str]) -> bool:
        """Return whether all of these consumers are served by the thread that asks: they take nothing while it waits."""
        return self.delivering.all_here({name.partition(CONSUMER_ID_SEPARATOR)[0] for name in consumers})

    def subscribes_here(self, subscribers: Collection[str]) -> bool:
        """Return whether one of these is served by the thread that asks: one that does not go on holds all publishers up."""
        owners = (position.owner for position in self.positions.all() if position.id in subscribers)
        return any(owner is not None and self.delivering.all_here({owner.id}) for owner in owners)

    def note_flush(self) -> None:
        """Have what the database lost declared again at once, and consumers that left their lists listed."""
        self._topology_recovery.run_soon()
        self.consumer_lists.run_soon()
        self.wake()

    def wake(self) -> None:
        """Have the thread look at what is due."""
        self._waker.wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left to settle, at most `timeout_s` seconds; return whether that was reached.

        All calls while the broker is away share the time of the first one: a worker that ends closes several connections.
        """
        if self._flush_until is None:
            self._flush_until = time.monotonic() + timeout_s
        flushed = self._wait_until(lambda: not self.unacked_messages.waiting, self._flush_until - time.monotonic())
        if flushed:
            self._flush_until = None
        return flushed

    def wait_until_reported(self) -> None:
        """Wait until the server knows what this process consumes, `REPORT_PATIENCE_S` at most; before its first claim."""
        self._wait_until(lambda: self.heartbeat.has_reported, REPORT_PATIENCE_S)

    def _wait_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not reached():
            if time.monotonic() >= deadline:
                return False
            self.start()
            time.sleep(WORK_POLL_S)
        return True

    def stop(self) -> None:
        """End the thread and close its connections. What is held stays claimed until its deadline."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping = True
        self._waker.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
        self.deliveries.stop()

    def close(self) -> None:
        """Stop for good: no connection of this process uses the service any more."""
        with self._lock:
            self._closed = True
        self.stop()
        self._waker.close()

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        idle_since: float | None = None
        news = True
        # While no thread ran, none was due.
        self._lease_heartbeats.run_soon()
        try:
            while not self._stopping and self._pid == os.getpid():
                try:
                    due_at = self._work(news=news)
                    self._note_reachable()
                    # An error is news as well.
                    news = True
                    news = self._rest(due_at)
                except (RedisError, OSError, CeleryRedisPlusError) as error:
                    self._note_unreachable(error)
                    self._pause(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing
                    backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
                except Exception:
                    logger.exception("the maintenance thread failed; this is a defect of celery-redis-plus, please report it")
                    self._note_unreachable(None)
                    self._pause(LONGEST_BACKOFF_S)
                else:
                    backoff_s = FIRST_BACKOFF_S
                if self._consumes() or len(self.unacked_messages) or self.unacked_messages.waiting:
                    idle_since = None
                else:
                    idle_since = idle_since or clock.now_s()
                    if clock.now_s() - idle_since > IDLE_END_S and self._retire():
                        break
        finally:
            if self._pid == os.getpid():
                self._lease_heartbeats.run_soon()
                self._commands.close()
                if self._lanes is not None:
                    self._lanes.close()
                with self._lock:
                    if self._thread in {None, threading.current_thread()}:
                        # Else one that was started meanwhile waits there by now.
                        self._wakeups.abort()

    def _retire(self) -> bool:
        with self._lock:
            if self._consumes() or self.unacked_messages.waiting:
                return False
            if self._thread is threading.current_thread():
                self._thread = None
            return True

    def _consumes(self) -> bool:
        """Return whether this process consumes, in any lane of the broker, or waits for what a lost one has."""
        return self.own_process.looks or any(service.watched.all() for service in (self, *self.others))

    def _work(self, *, news: bool) -> float:
        version = self.watched.version
        if version != self._watched_version:
            self._watched_version = version
            self._transient_queues.run_soon()
            self.consumer_lists.look_soon()
            self._subscriber_heartbeats.run_soon()
            # All of them: each is asked for every few seconds.
            self.knowledge.records.make_room(2 * len(self.watched))
        # First: a queue that has just woken this process is swept, also where it is consumed here no more.
        due_at = self.runner.run(news=news)
        unconsumed = self._unconsumed_queues.queues if self._leadership.leads else []
        if (version, unconsumed) != self._swept_as_of:
            self._swept_as_of = (version, unconsumed)
            self._swept = dict.fromkeys([queue.name for queue in self.watched.all()] + unconsumed)
            self._sweeper.watch(self._swept)
            return self.runner.next_run_at
        return due_at

    def _rest(self, due_at: float) -> bool:
        """Wait until `due_at`, a wakeup, or work of a channel for this thread; return whether one of the latter came."""
        return self._wakeups.wait(max(0.0, min(due_at - clock.now_s(), MAX_IDLE_S)), self._swept)

    def _note_unreachable(self, error: Exception | None) -> None:
        if self._reachable and error is not None and not self._stopping:
            self._reachable = False
            logger.warning("heartbeats and timers: the broker is unreachable (%s); trying again", error)
        self._commands.abort()
        self._wakeups.abort()
        for task in (
            self.heartbeat, self._lease_heartbeats, self._sweeper, self.consumer_lists, self._transient_queues,
            self._unconsumed_queues, self._topology_recovery, self._subscriber_heartbeats,
        ):  # fmt: skip
            task.run_soon()

    def _note_reachable(self) -> None:
        if not self._reachable:
            self._reachable = True
            self._flush_until = None
            logger.info("heartbeats and timers: the broker is reachable again")

    def _pause(self, seconds: float) -> None:
        """Wait before the next try; new work does not shorten it, a stop does."""
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            wait_readable([self._waker.fileno()], left)
            self._waker.clear()
