"""Turns wakeups, claims and broadcasts into deliveries, under Celery's event loop and under `drain_events`.

One loop serves all channels of a connection. A turn delivers what is buffered, claims where there is credit and reason to,
and blocks on the wakeups when there is none. Its `HubRegistration` is the only owner of the connection's file descriptors in the
loop.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_redis_plus import clock
from celery_redis_plus.connection import forks
from celery_redis_plus.connection.poll import several_may_wait, wait_readable
from celery_redis_plus.consumer.fetcher import Fetcher, FetchPolicy
from celery_redis_plus.consumer.hub_registration import HubRegistration
from celery_redis_plus.consumer.restricted_queues import RestrictedQueues
from celery_redis_plus.consumer.wakeup_listener import WakeupListener

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers

#: Seconds for which one turn of the event loop delivers: a solo worker runs the task inside the delivery, and remote control
#: must not wait for a whole batch.
TICK_BUDGET_S = 0.010
#: Broadcasts that are delivered in a row while messages may wait in queues.
BROADCASTS_IN_A_ROW = 32
#: Messages that are delivered in a row before broadcasts are checked.
MESSAGES_IN_A_ROW = 32
#: Seconds between two checks of connections whose reply is overdue.
HEALTH_S = 5.0
#: Seconds; what a channel looks at later than this waits for a turn that comes anyway.
LONG_RECHECK_S = 2.5


class DeliveryLoop:
    """The consumer side of one connection."""

    def __init__(self, connection: BrokerConnection, has_callbacks: Callable[[Any], bool]) -> None:
        """Serve the consumers that are added.

        Args:
            connection: the connections to the broker.
            has_callbacks: tells whether an event loop has callbacks to call in its next turn.
        """
        self._connection = connection
        self._consumers: list[QueueConsumers] = []
        self._hub = HubRegistration(connection.waker, has_callbacks)
        self._policy = FetchPolicy(connection.options, self._hub)
        self.restricted_queues = RestrictedQueues(connection)
        self._wakeups = WakeupListener(connection, self._consumers, self._policy)
        self.fetcher = Fetcher(connection, self.restricted_queues, self._consumers, self._policy, self._hub)
        self._deliveries = 0
        #: The place of the channel that delivers next.
        self._next_channel = 0
        self._in_tick = False
        self._broadcasts_in_a_row = 0
        self._messages_in_a_row = 0
        forks.on_fork_in_child(self)

    def forked(self) -> None:
        """Leave the loop, and all that was claimed, to the parent, in a child."""
        self._hub.forked()
        for consumers in self._consumers:
            consumers.forked()

    # -- consumers --------------------------------------------------------------------------------------------------------

    def add(self, consumers: QueueConsumers) -> None:
        """Serve the consumers of a channel."""
        self._consumers.append(consumers)

    def discard(self, consumers: QueueConsumers) -> None:
        """Serve them no more."""
        if consumers in self._consumers:
            self._consumers.remove(consumers)

    def consumes(self, queue: str) -> bool:
        """Return whether any of the consumers consumes `queue`."""
        return any(queue in consumers.consumed for consumers in self._consumers)

    # -- one tick ---------------------------------------------------------------------------------------------------------

    def _deliver_one(self) -> bool:
        """Deliver one broadcast or message; return whether there was one that could be."""
        reader = self._connection.reader
        if self._broadcasts_in_a_row < BROADCASTS_IN_A_ROW:
            if reader.ready and self._deliver_broadcast():
                return True
        elif self._consumers:
            # Queues have their turn: their wakeups were not read while broadcasts were delivered.
            self._wakeups.start_wait()
            self._wakeups.take()
            self.fetcher.claim()
        self._broadcasts_in_a_row = 0
        if self._deliver_message():
            self._messages_in_a_row += 1
            if self._messages_in_a_row >= MESSAGES_IN_A_ROW:
                self._messages_in_a_row = 0
                self._start_stream_wait()
                self._take_broadcasts()
            return True
        return bool(reader.ready) and self._deliver_broadcast()

    def _deliver_broadcast(self) -> bool:
        delivery = self._connection.reader.next()
        if delivery is None:
            return False
        self._broadcasts_in_a_row += 1
        entries = delivery[0].consumer.deliver_broadcast(delivery)
        if entries:
            self._hub.count_timer_entries(entries)
        return True

    def _deliver_burst(self, until: float) -> None:
        """Deliver more of the broadcasts that a read has brought, `until` then, and while queues need not wait for it."""
        connection = self._connection
        active_tasks = connection.service.active_tasks
        while 0 < self._broadcasts_in_a_row < BROADCASTS_IN_A_ROW and time.monotonic() < until:
            if connection.broken or (active_tasks is not None and active_tasks.stop_requested()) or not self._deliver_broadcast():
                return

    def _deliver_message(self) -> bool:
        everyone = self._consumers
        if len(everyone) > 1 and self.fetcher.due:
            self.fetcher.claim()
        for number in range(self._next_channel, self._next_channel + len(everyone)):
            consumers = everyone[number % len(everyone)]
            if consumers.buffer and consumers.credit.can_consume():
                self._deliveries += 1
                self._next_channel = number % len(everyone) + 1
                self._connection.acknowledger.flush_due()
                entries = consumers.deliver_next()
                if entries:
                    self._hub.count_timer_entries(entries)
                return True
        return False

    def _recheck_in_s(self) -> float:
        """Return the seconds until a channel has to look at a queue by itself; infinity where none has to."""
        at = min((at for consumers in self._consumers for at in consumers.recheck_at.values()), default=math.inf)
        return max(0.0, at - clock.now_s())

    def _start_waits(self, *, wakeups: bool = True) -> None:
        """Block on the streams, and on the wakeups if wanted, unless a pending call covers them already."""
        if wakeups:
            self._wakeups.start_wait()
        self._start_stream_wait()

    def _start_stream_wait(self) -> None:
        reader = self._connection.reader
        if reader.wants:
            rest_s = reader.rest_s()
            if not rest_s:
                reader.start_wait()
            elif self._hub.attached:
                self._hub.wake_in(rest_s)

    def _take_broadcasts(self) -> bool:
        """Read an ended read of the streams; return whether there may be something to deliver now."""
        reader = self._connection.reader
        if not reader.arrived():
            return reader.apply_changes()
        reader.take()
        return True

    # -- without an event loop --------------------------------------------------------------------------------------------

    def drain(self, timeout_s: float | None) -> bool:
        """Deliver one message; return whether one came within `timeout_s` seconds. None waits for ever, 0 only looks.

        Where a read has brought several broadcasts, they are delivered for up to `TICK_BUDGET_S`, as kombu's redis transport does
        with what has arrived of them: the way here through kombu costs as much as a delivery.

        Raises:
            redis.exceptions.RedisError: as `translation.translate` names it; the connection is of no use any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        connection = self._connection
        service = connection.service
        while True:
            if connection.broken:
                connection.check()
            began = time.monotonic()
            service.delivering.begin(connection.id)
            outer, self._in_tick, connection.loop_thread = (self._in_tick, connection.loop_thread), True, threading.get_ident()
            try:
                if self._deliver_one():
                    if self._broadcasts_in_a_row:
                        self._deliver_burst(until=began + TICK_BUDGET_S)
                    return True
            finally:
                self._in_tick, connection.loop_thread = outer
                service.delivering.end()
            if connection.reader.apply_changes() or self.fetcher.claim():
                continue
            connection.acknowledger.flush()
            self._start_waits()
            left = HEALTH_S if deadline is None else deadline - time.monotonic()
            rest_s = connection.reader.rest_s() or HEALTH_S
            wait_s = max(min(left, HEALTH_S, rest_s, self._policy.delay_s() or HEALTH_S, self._recheck_in_s()), 0.0)
            if self._wait(wait_s):
                # First: the message that a wakeup announced waits only for this.
                self.fetcher.claim()
            elif left <= 0:
                return False

    def _descriptors(self) -> dict[str, int]:
        """Return what to wait for, by name."""
        connection = self._connection
        found = {"waker": connection.waker.fileno()}
        if connection.waiter.waiting:
            found["wakeups"] = connection.wakeup_connection.fileno()
        if connection.reader.waiting:
            found["streams"] = connection.stream_connection.fileno()
        if connection.commands.connected and several_may_wait():
            found["commands"] = connection.commands.fileno()
        return found

    def _wait(self, timeout_s: float) -> bool:
        """Wait for any of the descriptors and read what has come; return whether something has."""
        connection = self._connection
        descriptors = self._descriptors()
        readable = wait_readable(descriptors.values(), timeout_s)
        if not readable:
            connection.service.check()
            # What should have answered may be overdue: a peer that went silent sends no end of file.
            self._wakeups.take()
            self._take_broadcasts()
            return False
        if descriptors["waker"] in readable:
            connection.waker.clear()
        if descriptors.get("commands") in readable or (connection.commands.has_pending and not several_may_wait()):
            connection.commands.read_ready()
        # Asking each wire again whether it has something would cost two more system calls.
        if descriptors.get("wakeups") in readable:
            self._wakeups.take(wait=True)
        if descriptors.get("streams") in readable and connection.reader.waiting:
            connection.reader.take()
        return True

    # -- under Celery's event loop ----------------------------------------------------------------------------------------

    def attach(self, loop: Any) -> None:
        """Serve from `loop`; calling it again, or with another loop, leaves no trace of before."""
        self.detach()
        self._connection.loop_thread = threading.get_ident()
        self._hub.attach(loop, self.on_tick, self._on_timer)

    def keep(self, unacked: UnackedMessage) -> bool:
        """Keep an ack of the loop's own thread for the loop's next write, which claims as well; return False where it cannot.

        In a turn, in which a solo worker runs its tasks, the maintenance thread flushes acks that wait behind a long one. Outside
        of turns not when the worker was told to end: then the loop stands still while its pool finishes what it has.
        """
        service = self._connection.service
        if self._in_tick:
            if unacked.queue in service.unacked_messages.limited:
                return False
        elif service.active_tasks is not None and service.active_tasks.stop_requested():
            return False
        self._connection.acknowledger.batch_ack(unacked)
        return True

    def ticks_when_woken(self, active_tasks: ActiveTasks | None) -> bool:
        """Return whether the loop, which another thread asks about, takes a turn when it is woken."""
        return self._hub.attached and (active_tasks is None or not active_tasks.stop_requested())

    @property
    def attached(self) -> bool:
        """Whether a loop serves it, and will so tell its consumers when the connection breaks."""
        return self._hub.attached

    def detach(self) -> None:
        """Leave the loop."""
        if self._hub.attached:
            self._connection.loop_thread = None
            with suppress(RedisError, OSError):
                # What failed is broken by now, and its next user hears of it.
                self.fetcher.pending.finish()
            self._connection.acknowledger.flush()
            self._hub.detach()

    def on_tick(self) -> None:
        """Take one turn before the loop sleeps. Raises what a broken connection raises; Celery then reconnects."""
        connection = self._connection
        connection.check()
        # Before the turn: what another thread settles from now on wakes the loop again.
        connection.waker.clear()
        connection.reader.apply_changes()
        self._hub.begin_tick()
        delivered_before = self._deliveries
        more = self._tick()
        if not self._hub.attached:
            return
        if more or self._hub.needs_another_tick(delivered=self._deliveries != delivered_before):
            connection.waker.wake()
        else:
            self._start_waits(wakeups=not self.fetcher.comes_anyway())
            later_s = self._recheck_in_s()
            if later_s < LONG_RECHECK_S:
                self._hub.wake_in(later_s)
        if not self.fetcher.pool_is_concurrent:
            connection.acknowledger.flush()
        else:
            connection.acknowledger.flush_due()
        connection.commands.flush()
        self._hub.listen("wakeups", connection.wakeup_connection, self._on_wakeup, wanted=bool(connection.waiter.waiting))
        self._hub.listen("streams", connection.stream_connection, self._on_streams, wanted=connection.reader.waiting)
        self._hub.listen(
            "commands",
            connection.commands,
            connection.commands.read_ready,
            wanted=self.fetcher.pending.out and connection.commands.connected,
        )

    def _tick(self) -> bool:
        """Deliver and claim for `TICK_BUDGET_S` seconds; return whether there is more to do at once."""
        if self._in_tick:
            return True
        self._in_tick = True
        try:
            deadline = time.monotonic() + TICK_BUDGET_S
            active_tasks = self._connection.service.active_tasks
            with self._connection.service.delivering.of(self._connection.id):
                while self._deliver_one() or self.fetcher.claim():
                    # A solo worker has run a task in there: one that was told to end shall not begin the next.
                    if time.monotonic() > deadline or (active_tasks is not None and active_tasks.stop_requested()):
                        return True
        except BaseException:
            # It ends the loop: a cold shutdown comes out of a task.
            self._connection.acknowledger.flush()
            raise
        else:
            return False
        finally:
            self._in_tick = False

    def _on_wakeup(self) -> None:
        self._wakeups.take()

    def _on_streams(self) -> None:
        self._take_broadcasts()

    def _on_timer(self) -> None:
        """Look at what should have answered: a peer that went silent sends no end of file."""
        if threading.get_ident() != self._connection.loop_thread:
            # Celery 5.7 fires the loop's timers from another thread while its own waits for a prefork pool to end. It may wait in
            # the handler of a signal (a cold shutdown) that met it within a call: then it has the lock, and waits for us.
            if self._connection.commands.lock.acquire(blocking=False):
                try:
                    self._connection.acknowledger.flush()
                    with suppress(RedisError, OSError):
                        self._connection.commands.read_ready()
                finally:
                    self._connection.commands.lock.release()
            return
        self._connection.service.check()
        self._wakeups.take()
        self._take_broadcasts()
        # Replies to acks are read with the next claim; where none comes, here. So is the end of the connection.
        self._connection.commands.read_ready()
        self.fetcher.pending.check()
