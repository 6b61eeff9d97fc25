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
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.maintenance.ack_timeouts import AckTimeouts
from celery_redis_plus.maintenance.delivering import Delivering
from celery_redis_plus.maintenance.process_end import ProcessEnd
from celery_redis_plus.maintenance.task_wakeups import TaskWakeups, WokenTasks
from celery_redis_plus.maintenance.tasks import Tasks

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.runner import TaskRunner
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Seconds between two tries to reach a server that is unreachable: first, and at most.
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 1.0
#: Seconds without consumers after which the thread ends; a new consumer starts it again.
IDLE_END_S = 10.0
#: Seconds for which a first claim waits for the thread, which may be busy or unable to connect; and between two looks at it.
REPORT_PATIENCE_S, WORK_POLL_S = 0.25, 0.002
#: Seconds beyond `consumer_heartbeat_timeout` for which a process looks for lost and silent ones after it was asked to.
LOOK_FOR_LOST_S = 10.0
#: Most seconds that the thread sleeps when nothing is due.
MAX_IDLE_S = 30.0


class MaintenanceService:
    """What a process that consumes does on one broker, beside its channels."""

    _reachable = True
    #: Until when `flush` waits, on the monotonic clock, in seconds; None where it has not waited in vain.
    _flush_until: float | None = None
    _consumed_version = -1
    #: The queues that this process sweeps: those that it consumes, and those that no process consumes; and of when they are.
    _swept: Collection[str] = ()
    _swept_as_of: tuple[int, list[str]] | None = None

    def __init__(
        self, connector: Connector, keys: Keys, options: Options, *,
        name: str, topology: DeclaredTopology, reconnects: Callable[[], int],
    ) -> None:  # fmt: skip
        """Prepare; `start` starts the thread.

        Args:
            connector: opens its connections.
            keys: spells the keys.
            options: the transport's.
            name: the process's on the server.
            topology: what this process has declared.
            reconnects: returns how many connections were opened in place of one that had failed.
        """
        self._reconnects = reconnects
        #: Returns whether the thread has work although this process consumes nothing here.
        self.needed_besides: Callable[[], bool] = lambda: False
        self._look_s = options.consumer_heartbeat_timeout + LOOK_FOR_LOST_S
        self.name = name
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._lock = lock_of(self)
        self._stopping = self._closed = False
        #: Which thread delivers messages of which sessions right now.
        self.delivering = Delivering()
        self._waker = Waker()
        #: The maintenance tasks, and what they share.
        tasks = self.tasks = Tasks(
            connector, keys, options, name=name, topology=topology, wake=self._waker.wake,
            needed_besides=self._is_needed_besides,
        )  # fmt: skip
        self.unacked_messages, self.consumed, self.positions = tasks.unacked_messages, tasks.consumed, tasks.positions
        self.unacked_messages.on_work = self._waker.wake
        self.consumed.on_change = self._waker.wake
        if connector.credentials is not None:
            connector.credentials.wake_on_renewal(self._waker)
        if connector.finder is not None:
            connector.finder.wake_on_move(self._waker)
        #: What this process has declared.
        self.topology = topology
        #: Gives back what is left when the interpreter exits.
        self.process_end = ProcessEnd(connector, keys, options, self.unacked_messages, self.consumed)
        #: What this process waits for; its thread runs while there is something.
        self.deliveries = AckTimeouts(connector, keys, options)
        #: Those that channels and sessions tell something.
        self.own_process, self.heartbeat, self.consumer_lists = tasks.own_process, tasks.heartbeat, tasks.consumer_lists
        self.ack_flush, self.dropped = tasks.ack_flush, tasks.dropped_sessions
        #: How often the thread had died, and messages that consumers could not read.
        self.thread_restarts = self.unreadable = 0
        #: Messages that a Celery worker could not handle since a task began.
        self.unhandled_in_a_row = 0
        self._wakeups = TaskWakeups(
            tasks.blocking, tasks.commands, self._waker, name=self.name, keys=keys,
            tasks=WokenTasks(tasks.sweeper, tasks.unconsumed_queues, tasks.leadership),
        )  # fmt: skip

    # -- from the channels' threads ---------------------------------------------------------------------------------------

    @property
    def active_tasks(self) -> ActiveTasks | None:
        """Who decides about unsettled messages after a connection loss; None: they all go back."""
        return self.tasks.reconnect_recovery.active_tasks

    @active_tasks.setter
    def active_tasks(self, active_tasks: ActiveTasks | None) -> None:
        self.tasks.reconnect_recovery.active_tasks = active_tasks
        self.tasks.subscriber_heartbeats.active_tasks = active_tasks

    @property
    def runner(self) -> TaskRunner:
        """All maintenance tasks, and those of them that fail."""
        return self.tasks.runner

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
        """Have this process look for lost and silent ones for a while: something here waits for what one of them has.

        From any thread.
        """
        self.own_process.look_for(self._look_s)
        self.heartbeat.run_soon()
        self.start()

    def check_thread(self) -> None:
        """See that the thread lives and keeps its times; start it again where it died. From any thread, every few seconds."""
        thread = self._thread
        if thread is not None and not thread.is_alive() and not self._stopping and self._pid == os.getpid():
            self.thread_restarts += 1
            logger.error(
                "the thread for heartbeats and timers has died; it is started again (%d times by now)", self.thread_restarts
            )
            self.start()
        self.tasks.lease_heartbeats.warn_while_late(reachable=self._reachable)

    def figures(self) -> dict[str, float]:
        """Return what is known of this process: `PROCESS_COUNTERS` and `PROCESS_GAUGES` of `record_fields`, by name."""
        return {
            "late_heartbeats": self.tasks.lease_heartbeats.late,
            "thread_restarts": self.thread_restarts,
            "failed_tasks": self.runner.failed,
            "sweeps": self.tasks.sweeper.sweeps,
            "recoveries": self.tasks.sweeper.recovered + self.tasks.lost_processes.recovered,
            "unreadable_messages": self.unreadable,
            "redeliveries": self.unacked_messages.redelivered,
            "reconnects": self._reconnects(),
            "unacked_messages": len(self.unacked_messages),
            "leads": int(self.tasks.leadership.leads),
            "failing_tasks": len(self.runner.failing),
            "heartbeat_delay_seconds": self.tasks.lease_heartbeats.late_s,
            "fanout_lag_messages": self.tasks.subscriber_heartbeats.longest_lag,
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
        self.tasks.note_flush()

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
    def closed(self) -> bool:
        """Whether it was stopped for good."""
        return self._closed

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
        self.tasks.lease_heartbeats.run_soon()
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
                if self._has_work():
                    idle_since = None
                else:
                    idle_since = idle_since or clock.now_s()
                    if clock.now_s() - idle_since > IDLE_END_S and self._retire():
                        break
        finally:
            if self._pid == os.getpid():
                self.tasks.lease_heartbeats.run_soon()
                self.tasks.commands.close()
                self.tasks.elsewhere.close()
                with self._lock:
                    if self._thread in {None, threading.current_thread()}:
                        # Else one that was started meanwhile waits there by now.
                        self._wakeups.abort()

    def _is_needed_besides(self) -> bool:
        return self.needed_besides()

    def _retire(self) -> bool:
        with self._lock:
            if self._consumes() or self.unacked_messages.waiting:
                return False
            if self._thread is threading.current_thread():
                self._thread = None
            return True

    def _has_work(self) -> bool:
        return bool(self._consumes() or len(self.unacked_messages) or self.unacked_messages.waiting)

    def _consumes(self) -> bool:
        """Return whether this process consumes, waits for what a lost one has, or has another reason to do the maintenance."""
        return self.own_process.looks or bool(self.consumed.all()) or self.needed_besides()

    def _work(self, *, news: bool) -> float:
        version = self.consumed.version
        if version != self._consumed_version:
            self._consumed_version = version
            self.tasks.transient_queues.run_soon()
            self.consumer_lists.look_soon()
            self.tasks.subscriber_heartbeats.run_soon()
            # All of them: each is asked for every few seconds.
            self.topology.records.make_room(2 * len(self.consumed))
        # First: a queue that has just woken this process is swept, also where it is consumed here no more.
        due_at = self.runner.run(news=news)
        unconsumed = self.tasks.unconsumed_queues.queues if self.tasks.leadership.leads else []
        if (version, unconsumed) != self._swept_as_of:
            self._swept_as_of = (version, unconsumed)
            self._swept = dict.fromkeys([queue.name for queue in self.consumed.all()] + unconsumed)
            self.tasks.sweeper.watch(self._swept)
            return self.runner.next_run_at
        return due_at

    def _rest(self, due_at: float) -> bool:
        """Wait until `due_at`, a wakeup, or work of a channel for this thread; return whether one of the latter came."""
        return self._wakeups.wait(max(0.0, min(due_at - clock.now_s(), MAX_IDLE_S)), self._swept)

    def _note_unreachable(self, error: Exception | None) -> None:
        # A process that has ended its work with a broker misses nothing when that goes away.
        if self._reachable and error is not None and not self._stopping and self._has_work():
            self._reachable = False
            logger.warning("heartbeats and timers: the broker is unreachable (%s); trying again", error)
        self.tasks.commands.abort()
        self._wakeups.abort()
        self.tasks.run_soon()

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
