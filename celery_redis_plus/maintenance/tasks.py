"""The maintenance tasks of a process on one broker, and what they share: each property says what its task needs.

Each is made when it is asked for first, so the order of the properties says nothing. `runner` has all tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.leases import Leases
from celery_redis_plus.broker.consumers.processes import Processes
from celery_redis_plus.broker.consumers.registry import Consumers
from celery_redis_plus.broker.consumers.unacked import UnackedMessages
from celery_redis_plus.broker.dead_letters.elsewhere import NOWHERE_ELSE, Elsewhere
from celery_redis_plus.broker.dead_letters.redriver import Redriver
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursors
from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from celery_redis_plus.broker.queues.ownership import Ownership, delete_queue
from celery_redis_plus.broker.queues.policies import PolicyList
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.maintenance.ack_flush import AckFlush
from celery_redis_plus.maintenance.ack_timeouts import AbandonedDeliveries, OverdueDeliveries
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.consumer_lists import ConsumerLists
from celery_redis_plus.maintenance.consumer_timeouts import ConsumerTimeouts
from celery_redis_plus.maintenance.dead_letter_forwarder import DeadLetterForwarder
from celery_redis_plus.maintenance.dead_subscribers import DeadSubscribers
from celery_redis_plus.maintenance.dropped_sessions import DroppedSessions
from celery_redis_plus.maintenance.ended_event_logs import EndedEventLogs
from celery_redis_plus.maintenance.heartbeat import Heartbeat
from celery_redis_plus.maintenance.janitor import Janitor
from celery_redis_plus.maintenance.leader import Leadership
from celery_redis_plus.maintenance.lease_heartbeats import LeaseHeartbeats, interval_s
from celery_redis_plus.maintenance.lost_processes import LostProcesses
from celery_redis_plus.maintenance.master_check import MasterCheck
from celery_redis_plus.maintenance.own_process import OwnProcess
from celery_redis_plus.maintenance.policy_changes import PolicyChanges
from celery_redis_plus.maintenance.process_recovery import LostRoles
from celery_redis_plus.maintenance.reconnect_recovery import ReconnectRecovery
from celery_redis_plus.maintenance.redeclared_queues import RedeclaredQueues
from celery_redis_plus.maintenance.redrive import Redrive
from celery_redis_plus.maintenance.runner import TaskRunner
from celery_redis_plus.maintenance.subscriber_heartbeats import SubscriberHeartbeats
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.maintenance.topology_recovery import TopologyRecovery
from celery_redis_plus.maintenance.transient_queues import TransientQueues
from celery_redis_plus.maintenance.unconsumed_queues import UnconsumedQueues
from celery_redis_plus.maintenance.unconverted_processes import UnconvertedProcesses

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.keys import FanoutKeys, Keys
    from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask
    from celery_redis_plus.options import Options


class Tasks:
    """The registry of maintenance tasks."""

    def __init__(
        self, connector: Connector, keys: Keys, options: Options, *,
        name: str, topology: DeclaredTopology, wake: Callable[[], None], needed_besides: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Make nothing yet.

        Args:
            connector: opens the connections.
            keys: spells the keys.
            options: the transport's.
            name: the process's on the server.
            topology: what this process has declared.
            wake: wakes the thread that runs the tasks.
            needed_besides: returns whether there is work although this process consumes nothing here.
        """
        self._connector, self._keys, self._options = connector, keys, options
        self._name, self._topology, self._wake = name, topology, wake
        self._needed_besides = needed_besides
        self.unacked_messages = UnackedMessages()
        self.consumed = ConsumedQueues()
        self.positions = SubscriberCursors(options.subscriber_timeout)
        self.leadership = Leadership(options.connection_lost_grace)
        self.commands = CommandConnection(connector, "maintenance", timeout=options.socket_timeout, learns_id=True)
        self.blocking = BlockingConnection(connector, "timers", timeout=options.socket_timeout, learns_id=True)
        #: Takes dead messages to queues of other brokers.
        self.elsewhere: Elsewhere = NOWHERE_ELSE

    @fork_safe_property
    def runner(self) -> TaskRunner:
        """All maintenance tasks, and those of them that fail."""
        return TaskRunner(
            (
                self.dropped_sessions,
                # Until it has run, what a killed process had comes back after the visibility timeout.
                self.heartbeat,
                self.reconnect_recovery,
                ConsumerTimeouts(self.unacked_messages, self._acknowledger, self.positions),
                self.sweeper,
                self._forwarder,
                self.topology_recovery,
                self.transient_queues,
                self.subscriber_heartbeats,
                self._dead_subscribers,
                # Where a worker takes what they publish, no warning is needed.
                *([] if self._options.take_from_kombu else [UnconvertedProcesses(self.commands, self._keys, self.consumed)]),
            ),
            first=(MasterCheck(self.commands), self.lease_heartbeats, self.consumer_lists, self.ack_flush),
            of_leader=(
                self.lost_processes,
                self.unconsumed_queues,
                self.janitor,
                EndedEventLogs(self._queues),
                Redrive(Redriver(self.commands, self._keys, self.dead_letters), self.unconsumed_queues, self.leadership),
                PolicyChanges(self._queues, PolicyList(self.commands, self._keys), self.leadership),
                AbandonedDeliveries(OverdueDeliveries(self.commands, self._keys, self._options)),
            ),
            leads=lambda: self.leadership.leads,
            together=self._together,
        )

    # -- who lives -----------------------------------------------------------------------------------------------------------

    @fork_safe_property
    def own_process(self) -> OwnProcess:
        """Which connections this process has."""
        return OwnProcess(
            (self.commands, self.blocking), self.consumed, self.unacked_messages, self.positions,
            grace_s=self._options.connection_lost_grace,
            heartbeat_s=interval_s(self._options.visibility_timeout),
            failing=lambda: self.runner.failing,
            needed_besides=self._needed_besides,
        )  # fmt: skip

    @fork_safe_property
    def heartbeat(self) -> Heartbeat:
        """Tells the server that this process lives, and learns whether it leads."""
        return Heartbeat(
            self.commands, self._processes, self.own_process, self.leadership, name=self._name,
            visibility_timeout_s=self._options.visibility_timeout, on_forgotten=self.note_flush,
            before=self._go_with_heartbeat,
        )  # fmt: skip

    def _together(self) -> tuple[MaintenanceTask, ...]:
        """Return what looks again and again; with the heartbeat of a process that is alone: others spread theirs."""
        looks = (self.subscriber_heartbeats, self.lost_processes, self.lease_heartbeats)
        return (*looks, self.heartbeat) if self.leadership.alone else looks

    def _go_with_heartbeat(self, next_at: float) -> None:
        """Have the looks for consumers go with a heartbeat, in one write, that would be sent before the next one."""
        for task in (self.consumer_lists, self.topology_recovery):
            self.runner.alone(task, partial(task.go_with_heartbeat, next_at))

    @fork_safe_property
    def lost_processes(self) -> LostProcesses:
        """Looks for processes without a connection."""
        ownership = Ownership(
            self.commands, self._keys, self._name,
            gone=self._topology.gone, remove=partial(delete_queue, self._queues, self._bindings),
        )  # fmt: skip
        roles = LostRoles(
            lambda exchange, process, page: self._subscribers.suspect(self._fanout_keys(exchange), process, page),
            ownership.remove_with,
        )
        return LostProcesses(self.commands, self._processes, self.heartbeat, self.leadership, roles, name=self._name)

    @fork_safe_property
    def lease_heartbeats(self) -> LeaseHeartbeats:
        """Keeps claims alive."""
        timeout_s = self._options.visibility_timeout
        leases = Leases(self.commands, self._keys, self.unacked_messages, visibility_timeout_s=timeout_s)
        return LeaseHeartbeats(
            leases, self.unacked_messages, visibility_timeout_s=timeout_s,
            take_longest=lambda: self.runner.take_longest(),  # noqa: PLW0108 - the runner is made of this task
        )  # fmt: skip

    @fork_safe_property
    def consumer_lists(self) -> ConsumerLists:
        """Keeps the lists of consumers true."""
        timeout_s = self._options.consumer_heartbeat_timeout
        consumers = Consumers(self.commands, self._keys, process=self._name, timeout_s=timeout_s, release=self._options.release)
        return ConsumerLists(
            consumers, self.consumed, self.unacked_messages, self._topology, timeout_s=timeout_s,
            note_id=self._redeclared.note_id,
        )  # fmt: skip

    @fork_safe_property
    def subscriber_heartbeats(self) -> SubscriberHeartbeats:
        """Reports how far subscribers are."""
        return SubscriberHeartbeats(self._subscribers, self.positions)

    @fork_safe_property
    def _dead_subscribers(self) -> DeadSubscribers:
        return DeadSubscribers(self._subscribers, self._bindings, self._fanout_keys, self.leadership)

    # -- messages ------------------------------------------------------------------------------------------------------------

    @fork_safe_property
    def sweeper(self) -> Sweeper:
        """Promotes, expires, recovers, and bounds what a queue keeps."""
        options = self._options
        limits = SweepLimits(options.visibility_timeout, options.delivery_limit, options.dead_letter_max, options.dead_letter_ttl)
        return Sweeper(
            self.commands, self._keys, self.consumed, name=self._name, forward=self._forwarder.forward_soon, limits=limits,
            note_id=self._redeclared.note_id,
        )  # fmt: skip

    @fork_safe_property
    def _redeclared(self) -> RedeclaredQueues:
        return RedeclaredQueues(
            self._queues, self._topology, self.consumed, self.unacked_messages, on_missing=self.topology_recovery.run_soon
        )

    @fork_safe_property
    def _forwarder(self) -> DeadLetterForwarder:
        return DeadLetterForwarder(self.dead_letters, self._queues, self._bindings, lambda: self.elsewhere)

    @fork_safe_property
    def reconnect_recovery(self) -> ReconnectRecovery:
        """Settles and gives back what belongs to broken sessions."""
        return ReconnectRecovery(self.commands, self._keys, self.unacked_messages, self._acknowledger)

    @fork_safe_property
    def dropped_sessions(self) -> DroppedSessions:
        """Hears of sessions that were never closed."""
        return DroppedSessions(
            self.unacked_messages, self.consumed, self.positions, self.consumer_lists, wake=self._wake
        )  # fmt: skip

    @fork_safe_property
    def ack_flush(self) -> AckFlush:
        """Hears of acks that wait for others."""
        return AckFlush(self._wake)

    # -- queues --------------------------------------------------------------------------------------------------------------

    @fork_safe_property
    def topology_recovery(self) -> TopologyRecovery:
        """Declares again what a flush or a deletion has taken from consumers."""
        return TopologyRecovery(
            self._queues, self._bindings, self.consumed, self._topology, on_flush=self.heartbeat.run_soon
        )  # fmt: skip

    @fork_safe_property
    def transient_queues(self) -> TransientQueues:
        """Keeps transient queues that are in use."""
        timeout_s = self._options.consumer_heartbeat_timeout
        return TransientQueues(self._queues, self.consumed, timeout_s=timeout_s)

    @fork_safe_property
    def janitor(self) -> Janitor:
        """Clears vanished transient queues away."""
        return Janitor(self._queues, self._bindings, self.consumed, on_unbound=self._dead_subscribers.forget_durable)

    @fork_safe_property
    def unconsumed_queues(self) -> UnconsumedQueues:
        """Knows the queues to be swept that no process may consume."""
        return UnconsumedQueues(self._queues, self.leadership)

    def note_flush(self) -> None:
        """Have what the database lost declared again at once, and consumers that left their lists listed."""
        self.topology_recovery.run_soon()
        self.consumer_lists.run_soon()
        self._wake()

    def run_soon(self) -> None:
        """Have all run next that may have missed something: the connection was away."""
        for task in (
            self.heartbeat, self.lease_heartbeats, self.sweeper, self.consumer_lists, self.transient_queues,
            self.unconsumed_queues, self.topology_recovery, self.subscriber_heartbeats,
        ):  # fmt: skip
            task.run_soon()

    # -- what they share -----------------------------------------------------------------------------------------------------

    @fork_safe_property
    def dead_letters(self) -> DeadLetters:
        """The dead letters of the broker."""
        return DeadLetters(self.commands, self._keys)

    @fork_safe_property
    def _queues(self) -> Queues:
        options = self._options
        return Queues(
            self.commands, self._keys, transient_ttl_s=options.transient_queue_ttl,
            owner_timeout_s=options.consumer_heartbeat_timeout, event_log=EventLogSettings.of(options), topology=self._topology,
        )  # fmt: skip

    @fork_safe_property
    def _bindings(self) -> Bindings:
        return Bindings(self.commands, self._keys, self._topology, self._fanout_keys)

    @fork_safe_property
    def _processes(self) -> Processes:
        options = self._options
        return Processes(
            self.commands, self._keys, delivery_limit=options.delivery_limit, dead_letter_max=options.dead_letter_max
        )  # fmt: skip

    @fork_safe_property
    def _acknowledger(self) -> Acknowledger:
        options = self._options
        return Acknowledger(
            self.commands, self._keys, self.unacked_messages,
            dead_letter_max=options.dead_letter_max, delivery_limit=options.delivery_limit,
        )  # fmt: skip

    @fork_safe_property
    def _subscribers(self) -> SubscriberRegistry:
        options = self._options
        return SubscriberRegistry(
            self.commands, timeout_s=options.subscriber_timeout, max_age_s=options.stream_max_age, process=self._name
        )  # fmt: skip

    def _fanout_keys(self, exchange: str) -> FanoutKeys:
        return self._keys.fanout(exchange, self._options.stream_prefix(self._connector.address.db))
