"""Turns wakeups, claims and broadcasts into deliveries, under Celery's event loop and under `drain_events`.

One loop serves all channels of a connection. A turn delivers what is buffered, claims where there is credit and reason to,
and blocks on the wakeups when there is none. What it does on the server is the work of a `ServerConsumer`. Its `HubRegistration`
is the only owner of the connection's file descriptors in the event loop. Whoever composes several loops, each on a server of its
own, calls the parts of `drain`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.consumer.hub_registration import HubRegistration
from celery_redis_plus.consumer.server_consumer import ServerConsumer

if TYPE_CHECKING:
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.maintenance.service import MaintenanceService

#: Seconds for which one turn of the event loop delivers: a solo worker runs the task inside the delivery, and remote control
#: must not wait for a whole batch.
TICK_BUDGET_S = 0.010
#: Seconds for which `drain` goes on, its time over, where a claim brought nothing and says that there is more.
CLAIMS_BEYOND_S = 0.05
#: Seconds between two checks of connections whose reply is overdue.
HEALTH_S = 5.0


class DeliveryLoop:
    """Serves the consumers of one kombu connection."""

    def __init__(self, session: ConsumerSession, has_callbacks: Callable[[Any], bool]) -> None:
        """Serve the consumers that are added.

        Args:
            session: of the connection, as far as it consumes.
            has_callbacks: tells whether an event loop has callbacks to call in its next turn.
        """
        self._hub = HubRegistration(session.waker, has_callbacks)
        self.server = ServerConsumer(session, self._hub)
        self._session = session
        self._in_tick = False
        #: Called between two deliveries of a turn: raises what ends the worker, as its event loop does between two turns.
        self.check_shutdown: Callable[[], None] = lambda: None
        forks.on_fork_in_child(self)

    def forked(self) -> None:
        """Leave the loop, and all that was claimed, to the parent, in a child."""
        self._hub.forked()
        for consumers in self.server.consumers:
            consumers.forked()

    def wake(self) -> None:
        """Have the loop, or `drain`, look at what there is to do. From any thread, and from a signal handler."""
        self._session.waker.wake()

    # -- without an event loop --------------------------------------------------------------------------------------------

    def drain(self, timeout_s: float | None) -> bool:
        """Deliver one message; return whether one came within `timeout_s` seconds. None waits for ever, 0 only looks.

        Where a read has brought several broadcasts, they are delivered for up to `TICK_BUDGET_S`, as kombu's redis transport does
        with what has arrived of them: the way here through kombu costs as much as a delivery.

        Raises:
            ConsumerCancelled: the server has ended a consumer.
            redis.exceptions.RedisError: as `error_translation.translate` names it; the connection is of no use any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self.deliver():
                return True
            if self.look():
                # Claims may bring nothing for long: what they came to had expired, or is for other consumers' filters.
                if deadline is None or time.monotonic() < deadline + CLAIMS_BEYOND_S:
                    continue
                return self._deliver()
            descriptors = self.prepare_wait()
            left = HEALTH_S if deadline is None else deadline - time.monotonic()
            readable = wait_readable(list(descriptors.values()), max(min(left, self.wait_at_most_s()), 0.0))
            self.read_ready(descriptors, readable)
            if not readable and left <= 0:
                return False

    def deliver(self) -> bool:
        """Deliver one message, or the broadcasts that have come together. Raises as `drain` does."""
        if self._session.broken:
            self._session.publisher_session.check_open()
        self.server.renew_logins()
        return self._deliver()

    def _deliver(self) -> bool:
        began = time.monotonic()
        in_tick, thread = self._in_tick, self._session.loop_thread
        # A context manager would cost as much as a delivery.
        delivering = self._session.service.delivering
        delivering.begin(self._session.id)
        self._in_tick = True
        self._session.loop_thread = threading.get_ident()
        try:
            delivered = self.server.deliver_one()
            if delivered:
                self.server.deliver_burst(until=began + TICK_BUDGET_S)
        finally:
            self._in_tick = in_tick
            self._session.loop_thread = thread
            delivering.end()
        return delivered

    def look(self) -> bool:
        """Look for what is not claimed yet, and tell the consumers that have ended; return whether anything may have come."""
        came = self._session.reader.apply_changes() or self.server.fetcher.claim()
        self.server.tell_cancelled()
        return came

    def prepare_wait(self) -> dict[str, int]:
        """Send what is batched, and ask to be told of messages; return what to wait for, by name."""
        self._session.acknowledger.flush()
        self.server.start_waits()
        return self.server.descriptors()

    def wait_at_most_s(self) -> float:
        """Return for how many seconds to wait, where nothing comes."""
        return min(HEALTH_S, self.server.wait_at_most_s())

    def read_ready(self, descriptors: Mapping[str, int], readable: Collection[int]) -> None:
        """Read what has come while `drain` waited, and claim."""
        if not readable:
            self.server.check_overdue()
            self.server.fetcher.check_pending()
            return
        self.server.read_ready(descriptors, readable)
        # First: the message that a wakeup announced waits only for this.
        self.server.fetcher.claim()

    # -- under Celery's event loop ----------------------------------------------------------------------------------------

    def attach(self, loop: Any) -> None:
        """Serve from `loop`; calling it again, or with another loop, leaves no trace of before."""
        self.detach()
        self._session.loop_thread = threading.get_ident()
        self._hub.attach(loop, self.on_tick, self.server.check_replies)

    def may_batch_ack(self, service: MaintenanceService, queue: str) -> bool:
        """Return whether an ack of the loop's own thread may wait for the loop's next write, which claims as well.

        In a turn, in which a solo worker runs its tasks, the maintenance thread flushes acks that wait behind a long one. Outside
        of turns not when the worker was told to end: then the loop stands still while its pool finishes what it has.
        """
        if self._in_tick:
            return queue not in service.unacked_messages.limited
        return service.active_tasks is None or not service.active_tasks.stop_requested()

    def set_worker(self, name: str, *, pool_is_concurrent: bool, check_shutdown: Callable[[], None]) -> None:
        """Tell the loop of the worker that it serves.

        Args:
            name: the worker's, for those who look at its messages.
            pool_is_concurrent: work goes on in other threads or processes, and never keeps the loop from its ticks.
            check_shutdown: raises what ends the worker, if it was told to end.
        """
        self.check_shutdown = check_shutdown
        self._session.claim_commands.worker = name
        self.server.fetcher.pool_is_concurrent = pool_is_concurrent

    @property
    def attached(self) -> bool:
        """Whether a loop serves it, and will so tell its consumers when the connection breaks."""
        return self._hub.attached

    def detach(self) -> None:
        """Leave the loop."""
        if self._hub.attached:
            self._session.loop_thread = None
            with suppress(RedisError, OSError):
                # What failed is broken by now, and its next user hears of it.
                self.server.fetcher.finish_pending()
            self._session.acknowledger.flush()
            self._hub.detach()

    def on_tick(self) -> None:
        """Take one turn before the loop sleeps.

        Raises ConsumerCancelled, or what a broken connection raises; Celery then reconnects.
        """
        server = self.server
        server.begin_tick()
        self._hub.begin_tick()
        delivered_before = server.deliveries
        more = self._tick()
        if not self._hub.attached:
            return
        server.tell_cancelled()
        delivered = delivered_before != server.deliveries
        again = more or self._hub.needs_another_tick(delivered=delivered)
        if again:
            self._hub.wake()
        server.end_tick(waits=not again)

    def _tick(self) -> bool:
        """Deliver and claim for `TICK_BUDGET_S` seconds; return whether there is more to do at once."""
        if self._in_tick:
            return True
        self._in_tick = True
        delivering = self._session.service.delivering
        delivering.begin(self._session.id)
        try:
            deadline = time.monotonic() + TICK_BUDGET_S
            # A signal that came before this turn has woken the loop, and this turn has taken that for its own.
            self.check_shutdown()
            while self.server.deliver_one() or self.server.fetcher.claim():
                # A solo worker has run a task in there: one that was told to end shall not begin the next.
                self.check_shutdown()
                if time.monotonic() > deadline:
                    return True
        except BaseException:
            # It ends the loop: a shutdown, also a cold one out of a task.
            self._session.acknowledger.flush()
            raise
        else:
            return False
        finally:
            delivering.end()
            self._in_tick = False
