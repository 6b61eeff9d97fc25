"""Turns wakeups, claims and broadcasts into deliveries, under Celery's event loop and under `drain_events`.

One loop serves all channels of a connection. A turn delivers what is buffered, claims where there is credit and reason to,
and blocks on the wakeups when there is none. What it does on a server is the work of a `ServerConsumer`, one for each server. Its
`HubRegistration` is the only owner of the connection's file descriptors in the event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.consumer.hub_registration import HubRegistration
from celery_redis_plus.consumer.server_consumer import ServerConsumer

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.maintenance.delivering import Delivering
    from celery_redis_plus.maintenance.service import MaintenanceService

#: Seconds for which one turn of the event loop delivers: a solo worker runs the task inside the delivery, and remote control
#: must not wait for a whole batch.
TICK_BUDGET_S = 0.010
#: Seconds for which `drain` goes on, its time over, where a claim brought nothing and says that there is more.
CLAIMS_BEYOND_S = 0.05
#: Seconds between two looks at the other servers while one has plenty to deliver.
LOOK_S = 0.05
#: Seconds between two checks of connections whose reply is overdue.
HEALTH_S = 5.0


class DeliveryLoop:
    """Serves the consumers of one kombu connection, on one server or several."""

    def __init__(self, connections: Sequence[ConsumerSession], has_callbacks: Callable[[Any], bool]) -> None:
        """Serve the consumers that are added.

        Args:
            connections: those to the servers, one each.
            has_callbacks: tells whether an event loop has callbacks to call in its next turn.
        """
        self._hub = HubRegistration([connection.waker for connection in connections], has_callbacks)
        self.servers = [ServerConsumer(connection, self._hub) for connection in connections]
        #: The places of the servers that deliver, and claim, next.
        self._next_server = self._next_claim = 0
        #: When to look next for work of the servers that deliver nothing, on the monotonic clock, in seconds.
        self._look_at = 0.0
        self._in_tick = False
        #: Called between two deliveries of a turn: raises what ends the worker, as its event loop does between two turns.
        self.check_shutdown: Callable[[], None] = lambda: None
        forks.on_fork_in_child(self)

    def server_of(self, session: PublisherSession) -> ServerConsumer:
        """Return the consuming side of the server of `session`."""
        return next(server for server in self.servers if server.connection.session is session)

    def forked(self) -> None:
        """Leave the loop, and all that was claimed, to the parent, in a child."""
        self._hub.forked()
        for server in self.servers:
            for consumers in server.consumers:
                consumers.forked()

    # -- one tick ---------------------------------------------------------------------------------------------------------

    def _deliver_one(self) -> ServerConsumer | None:
        """Deliver one broadcast or message of the servers in turn; return whose, None where there was none that could be."""
        servers = self.servers
        for number in range(self._next_server, self._next_server + len(servers)):
            server = servers[number % len(servers)]
            if server.deliver_one():
                self._next_server = (number + 1) % len(servers)
                if len(servers) > 1 and time.monotonic() > self._look_at:
                    self._look_at = time.monotonic() + LOOK_S
                    for other in servers:
                        if other is not server:
                            other.look_around()
                return server
        return None

    def _claim(self) -> bool:
        """Claim from each server where there is credit and reason to; return whether anything may have come by it.

        Servers share the credit of a channel, and the first one may take all of it. So the next one is first the next time.
        """
        servers, first = self.servers, self._next_claim
        came = False
        for place in range(first, first + len(servers)):
            fetcher = servers[place % len(servers)].fetcher
            before = fetcher.claims
            came = fetcher.claim() or came
            if fetcher.claims != before and first == self._next_claim:
                self._next_claim = (place + 1) % len(servers)
        for server in servers if came and len(servers) > 1 else ():
            server.note_credit()
        return came

    def _tell_cancelled(self) -> None:
        """Tell the consumers that a server has ended. Raises as `QueueConsumers.tell_cancelled`."""
        for server in self.servers:
            server.tell_cancelled()

    def _set_thread(self, thread: int | None) -> None:
        for server in self.servers:
            server.connection.loop_thread = thread

    def _begin_deliveries(self) -> list[Delivering]:
        """Note that this thread delivers, until `end` of what is returned: a context manager would cost as much as a delivery."""
        begun = []
        for server in self.servers:
            delivering = server.connection.service.delivering
            delivering.begin(server.connection.id)
            begun.append(delivering)
        return begun

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
        servers = self.servers
        while True:
            for server in servers:
                if server.connection.session.broken:
                    server.connection.session.check()
                server.renew_logins()
            if self._drain_one():
                return True
            if self._look():
                # Claims may bring nothing for long: what they came to had expired, or is for other consumers' filters.
                if deadline is None or time.monotonic() < deadline + CLAIMS_BEYOND_S:
                    continue
                return self._drain_one()
            for server in servers:
                server.connection.acknowledger.flush()
                server.start_waits()
            left = HEALTH_S if deadline is None else deadline - time.monotonic()
            if self._wait(max(min(left, HEALTH_S, *(server.wait_at_most_s() for server in servers)), 0.0)):
                # First: the message that a wakeup announced waits only for this.
                self._claim()
            elif left <= 0:
                return False

    def _look(self) -> bool:
        """Look for what is not claimed yet, and tell the consumers that have ended; return whether anything may have come."""
        found = [server.connection.reader.apply_changes() for server in self.servers]
        came = any(found) or self._claim()
        self._tell_cancelled()
        return came

    def _drain_one(self) -> bool:
        """Deliver one message, or the broadcasts that have come together."""
        began = time.monotonic()
        in_tick, thread = self._in_tick, self.servers[0].connection.loop_thread
        begun = self._begin_deliveries()
        self._in_tick = True
        self._set_thread(threading.get_ident())
        try:
            server = self._deliver_one()
            if server is not None:
                server.deliver_burst(until=began + TICK_BUDGET_S)
        finally:
            self._in_tick = in_tick
            self._set_thread(thread)
            for delivering in begun:
                delivering.end()
        return server is not None

    def _wait(self, timeout_s: float) -> bool:
        """Wait for any of the servers, or to be woken, and read what has come; return whether something has."""
        waits = [(server, server.descriptors()) for server in self.servers]
        readable = wait_readable([one for _, descriptors in waits for one in descriptors.values()], timeout_s)
        for server, descriptors in waits:
            if readable:
                server.read(descriptors, readable)
            else:
                server.check_overdue()
        return bool(readable)

    # -- under Celery's event loop ----------------------------------------------------------------------------------------

    def attach(self, loop: Any) -> None:
        """Serve from `loop`; calling it again, or with another loop, leaves no trace of before."""
        self.detach()
        self._set_thread(threading.get_ident())
        self._hub.attach(loop, self.on_tick, self._on_timer)

    def may_batch_ack(self, service: MaintenanceService, queue: str) -> bool:
        """Return whether an ack of the loop's own thread may wait for the loop's next write, which claims as well.

        In a turn, in which a solo worker runs its tasks, the maintenance thread flushes acks that wait behind a long one. Outside
        of turns not when the worker was told to end: then the loop stands still while its pool finishes what it has.
        """
        if self._in_tick:
            return queue not in service.unacked_messages.limited
        return service.active_tasks is None or not service.active_tasks.stop_requested()

    def ticks_when_woken(self, active_tasks: ActiveTasks | None) -> bool:
        """Return whether the loop, which another thread asks about, takes a turn when it is woken."""
        return self._hub.attached and (active_tasks is None or not active_tasks.stop_requested())

    def set_worker(self, *, pool_is_concurrent: bool, check_shutdown: Callable[[], None]) -> None:
        """Tell the loop of the worker that it serves.

        Args:
            pool_is_concurrent: work goes on in other threads or processes, and never keeps the loop from its ticks.
            check_shutdown: raises what ends the worker, if it was told to end.
        """
        self.check_shutdown = check_shutdown
        for server in self.servers:
            server.fetcher.pool_is_concurrent = pool_is_concurrent

    @property
    def attached(self) -> bool:
        """Whether a loop serves it, and will so tell its consumers when the connection breaks."""
        return self._hub.attached

    def detach(self) -> None:
        """Leave the loop."""
        if self._hub.attached:
            self._set_thread(None)
            for server in self.servers:
                with suppress(RedisError, OSError):
                    # What failed is broken by now, and its next user hears of it.
                    server.fetcher.finish_pending()
                server.connection.acknowledger.flush()
            self._hub.detach()

    def on_tick(self) -> None:
        """Take one turn before the loop sleeps.

        Raises ConsumerCancelled, or what a broken connection raises; Celery then reconnects.
        """
        servers = self.servers
        for server in servers:
            server.begin_tick()
        self._hub.begin_tick()
        delivered_before = sum([server.deliveries for server in servers])
        more = self._tick()
        if not self._hub.attached:
            return
        self._tell_cancelled()
        delivered = delivered_before != sum([server.deliveries for server in servers])
        again = more or self._hub.needs_another_tick(delivered=delivered)
        if again:
            self._hub.wake()
        for server in servers:
            server.end_tick(waits=not again)

    def _tick(self) -> bool:
        """Deliver and claim for `TICK_BUDGET_S` seconds; return whether there is more to do at once."""
        if self._in_tick:
            return True
        self._in_tick = True
        begun = self._begin_deliveries()
        try:
            deadline = time.monotonic() + TICK_BUDGET_S
            while self._deliver_one() is not None or self._claim():
                # A solo worker has run a task in there: one that was told to end shall not begin the next.
                self.check_shutdown()
                if time.monotonic() > deadline:
                    return True
        except BaseException:
            # It ends the loop: a shutdown, also a cold one out of a task.
            for server in self.servers:
                server.connection.acknowledger.flush()
            raise
        else:
            return False
        finally:
            for delivering in begun:
                delivering.end()
            self._in_tick = False

    def _on_timer(self) -> None:
        """Look at what should have answered: a peer that went silent sends no end of file."""
        for server in self.servers:
            server.check()
