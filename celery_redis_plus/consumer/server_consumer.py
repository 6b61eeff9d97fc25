"""The consuming side of one server: one wait for wakeups, one read of streams, one claim at a time, for all its channels."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus import clock
from celery_redis_plus.connection.poll import several_may_wait
from celery_redis_plus.consumer.fetcher import Fetcher
from celery_redis_plus.consumer.restricted_queues import RestrictedQueues

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.hub_registration import HubRegistration
    from celery_redis_plus.consumer.queue_browser import QueueBrowser
    from celery_redis_plus.consumer.queue_consumers import QueueConsumers

#: Broadcasts that are delivered in a row while messages may wait in queues.
BROADCASTS_IN_A_ROW = 32
#: Messages that are delivered in a row before broadcasts are checked.
MESSAGES_IN_A_ROW = 32
#: Copies of browsed messages that are delivered in a row before the others are checked.
COPIES_IN_A_ROW = 32
#: Seconds; what a channel looks at later than this waits for a turn that comes anyway.
LONG_RECHECK_S = 2.5
#: Seconds between two questions to Celery whether its worker has room (`worker_disable_prefetch`): a task that ends wakes nobody.
WORKER_LOOK_S = 0.05


class ServerConsumer:
    """What a delivery loop does on one server."""

    def __init__(self, session: ConsumerSession, hub: HubRegistration) -> None:
        """Consume over `session`; `hub` makes the event loop turn again."""
        self.session = session
        self._hub = hub
        #: Those of the channels.
        self.consumers: list[QueueConsumers] = []
        #: Those that only look.
        self.browsers: deque[QueueBrowser] = deque()
        self.restricted_queues = RestrictedQueues(
            session.claim_commands, session.consumers, session.queues,
            on_paused=self._queue_is_paused, on_standby=self._look_for_lost,
            consumer_timeout_s=session.options.consumer_heartbeat_timeout,
        )  # fmt: skip
        self.fetcher = Fetcher(session, self.restricted_queues, self.consumers, hub)
        #: How many messages were delivered.
        self.deliveries = 0
        #: The place of the channel that delivers next.
        self._next_channel = 0
        self._broadcasts_in_a_row = 0
        self._messages_in_a_row = 0
        self._copies_in_a_row = 0
        #: Under which the event loop knows its sockets.
        self._names = tuple(f"{kind} {session.id}" for kind in ("wakeups", "streams", "commands"))

    def _queue_is_paused(self) -> None:
        # The maintenance task logs it.
        service = self.session.service
        service.consumer_lists.run_soon()
        service.wake()

    def _look_for_lost(self) -> None:
        self.session.service.look_for_lost_processes()

    def consumes(self, queue: str) -> bool:
        """Return whether any of the consumers consumes `queue`."""
        return any(queue in consumers.consumed for consumers in self.consumers)

    def discard(self, consumers: QueueConsumers) -> None:
        """Serve a channel's consumers no more."""
        if consumers in self.consumers:
            self.consumers.remove(consumers)

    def tell_cancelled(self) -> None:
        """Tell the consumers that the server has ended. Raises as `QueueConsumers.tell_cancelled`."""
        for consumers in tuple(self.consumers):
            consumers.tell_cancelled()

    # -- deliveries -------------------------------------------------------------------------------------------------------

    def deliver_one(self) -> bool:
        """Deliver one broadcast or message; return whether there was one that could be."""
        if self.session.service.process_end.begun:
            return False
        reader = self.session.reader
        if self._broadcasts_in_a_row < BROADCASTS_IN_A_ROW:
            if reader.ready and self._deliver_broadcast():
                return True
        elif self.consumers:
            # Queues have their turn: their wakeups were not read while broadcasts were delivered.
            self._start_wakeup_wait()
            self.take_wakeups()
            self.fetcher.claim()
        self._broadcasts_in_a_row = 0
        if self._deliver_message():
            self._messages_in_a_row += 1
            if self._messages_in_a_row >= MESSAGES_IN_A_ROW:
                self._messages_in_a_row = 0
                self._start_stream_wait()
                self.take_broadcasts()
            return True
        if self.browsers and self._deliver_browsed():
            return True
        return bool(reader.ready) and self._deliver_broadcast()

    def _deliver_browsed(self) -> bool:
        """Deliver a copy of a message to one of the browsers, in turn; return whether there was one."""
        for _ in range(len(self.browsers)):
            browser = self.browsers[0]
            self.browsers.rotate(-1)
            if browser.may_deliver() and browser.deliver_one():
                self._copies_in_a_row += 1
                if self._copies_in_a_row >= COPIES_IN_A_ROW:
                    self._copies_in_a_row = 0
                    self._look_around()
                return True
        self._copies_in_a_row = 0
        return False

    def look_around(self) -> None:
        """Look for messages and broadcasts while another server delivers: it may have all the credit, so none is waited for.

        Raises:
            redis.exceptions.RedisError: as `Fetcher.claim` does.
        """
        if any(consumers.consumed for consumers in self.consumers) and not any(
            consumers.candidates or consumers.buffer for consumers in self.consumers
        ):
            self.fetcher.look()
        self._start_stream_wait()
        self.take_broadcasts()

    def note_credit(self) -> None:
        """Pass queues with consumer priorities on to others, where claims from another server have taken the credit."""
        for consumers in self.consumers:
            if consumers.available(self.fetcher.batch) <= 0:
                # The claim that comes when there is credit again says so.
                consumers.add_candidates(self.restricted_queues.suspend_all(consumers.consumers, consumers.candidates))

    def _look_around(self) -> None:
        """Look for messages and broadcasts while copies are delivered: what has come is delivered before the next copy."""
        self.start_waits()
        self.take_wakeups()
        self.take_broadcasts()
        self.fetcher.claim()

    def _deliver_broadcast(self) -> bool:
        delivery = self.session.reader.next()
        if delivery is None:
            return False
        self._broadcasts_in_a_row += 1
        self._deliver(partial(delivery[0].consumer.deliver_broadcast, delivery))
        return True

    def _deliver(self, deliver: Callable[[], int]) -> None:
        """Make a delivery, which returns how many entries it has added to Celery's timer."""
        acknowledger = self.session.acknowledger
        acknowledger.begin_delivery()
        try:
            entries = deliver()
        finally:
            acknowledger.end_delivery()
        if entries:
            self._hub.count_timer_entries(entries)

    def deliver_burst(self, until: float) -> None:
        """Deliver more of the broadcasts that a read has brought, `until` then, and while queues need not wait for it."""
        session = self.session
        active_tasks = session.service.active_tasks
        while 0 < self._broadcasts_in_a_row < BROADCASTS_IN_A_ROW and time.monotonic() < until:
            if session.broken or (active_tasks is not None and active_tasks.stop_requested()) or not self._deliver_broadcast():
                return

    def _deliver_message(self) -> bool:
        everyone = self.consumers
        if len(everyone) > 1 and self.fetcher.due:
            self.fetcher.claim()
        for number in range(self._next_channel, self._next_channel + len(everyone)):
            consumers = everyone[number % len(everyone)]
            if consumers.buffer and consumers.credit.can_consume():
                self.deliveries += 1
                self._next_channel = number % len(everyone) + 1
                self._deliver(consumers.deliver_next)
                return True
        return False

    # -- waiting ----------------------------------------------------------------------------------------------------------

    def start_waits(self, *, wakeups: bool = True) -> None:
        """Block on the streams, and on the wakeups if wanted, unless a pending call covers them already."""
        if wakeups:
            self._start_wakeup_wait()
        self._start_stream_wait()

    def _start_wakeup_wait(self) -> None:
        """Wait for the wake-ups of the queues for which there is credit, unless a call that covers them is out already."""
        waiter, wanted = self.session.waiter, self._wanted_wakeups()
        if wanted and not waiter.waiting:
            waiter.start_wait(wanted)
        elif waiter.waiting and not set(wanted) <= set(waiter.waiting):
            waiter.wake()
            self.take_wakeups(wait=True)
            if any(consumers.candidates for consumers in self.consumers):
                # A wake-up came meanwhile: claim first.
                self.session.waker.wake()
            else:
                waiter.start_wait(wanted)

    def _wanted_wakeups(self) -> tuple[bytes, ...]:
        """Return the wake-ups of the queues for which there is credit; none while no claim may be made."""
        wakeups: dict[bytes, None] = {}
        for consumers in () if self.fetcher.delay_s() else self.consumers:
            if consumers.consumed and consumers.available(self.fetcher.batch) > 0:
                wakeups.update(dict.fromkeys(consumers.wakeups[queue] for queue in consumers.consumed))
                wakeups.update(dict.fromkeys(consumers.own_wakeups.values()))
        return tuple(wakeups)

    def take_wakeups(self, *, wait: bool = False) -> None:
        """Read an ended wait: a queue with a wake-up is a candidate; after a timeout every queue that may have messages is."""
        waiter = self.session.waiter
        if not waiter.waiting or not (wait or waiter.arrived()):
            return
        wakeup = waiter.take()
        if wakeup is None:
            self.fetcher.recheck()
            return
        used, delayed = False, self.fetcher.delay_s() > 0
        for consumers in self.consumers:
            if consumers.note_wakeup(wakeup):
                used = used or (not delayed and consumers.available(self.fetcher.batch) > 0)
        if not used:
            # Woken for nothing: cancelled, or out of credit. The next in line shall look.
            waiter.notify(wakeup)

    def _start_stream_wait(self) -> None:
        reader = self.session.reader
        if reader.wants:
            rest_s = reader.rest_s()
            if not rest_s:
                reader.start_wait()
            elif self._hub.attached:
                self._hub.wake_in(rest_s)

    def take_broadcasts(self) -> bool:
        """Read an ended read of the streams; return whether there may be something to deliver now."""
        reader = self.session.reader
        if not reader.arrived():
            return reader.apply_changes()
        reader.take()
        return True

    def renew_logins(self) -> None:
        """Have the connections log in again that have older credentials than the newest; a call that waits is ended for it."""
        session = self.session
        if session.connector.credentials is None:
            return
        if session.wakeup_connection.login_due:
            if session.waiter.waiting:
                session.waiter.wake()
                self.take_wakeups(wait=True)
            session.wakeup_connection.renew_login()
        if session.stream_connection.login_due:
            # The next read opens it anew.
            session.reader.interrupt()
            session.stream_connection.renew_login()
        session.commands.renew_login()
        session.commands.flush()

    def recheck_in_s(self) -> float:
        """Return the seconds until a channel, or a browser, has to look by itself; infinity where none has to."""
        at = min((at for consumers in self.consumers for at in consumers.recheck_at.values()), default=math.inf)
        for browser in self.browsers:
            if browser.may_deliver():
                at = min(at, browser.next_read_at)
        now = clock.now_s()
        if any(consumers.credit.asks_worker and not consumers.available(1) for consumers in self.consumers):
            at = min(at, now + WORKER_LOOK_S)
        return max(0.0, at - now)

    def wait_at_most_s(self) -> float:
        """Return for how many seconds there is nothing to do but to wait; infinity where nothing else is due."""
        rests = (self.session.reader.rest_s(), self.fetcher.delay_s())
        return min(self.recheck_in_s(), self.session.keep_alive_s, *(rest_s or math.inf for rest_s in rests))

    def descriptors(self) -> dict[str, int]:
        """Return what to wait for, by name."""
        session = self.session
        found = {"waker": session.waker.fileno()}
        if session.waiter.waiting:
            found["wakeups"] = session.wakeup_connection.fileno()
        if session.reader.waiting:
            found["streams"] = session.stream_connection.fileno()
        if session.commands.connected and several_may_wait():
            found["commands"] = session.commands.fileno()
        return found

    def read_ready(self, descriptors: Mapping[str, int], readable: Collection[int]) -> None:
        """Read what has come on those of the `descriptors` that are `readable`."""
        session = self.session
        if descriptors["waker"] in readable:
            session.waker.clear()
        if descriptors.get("commands") in readable or (session.commands.has_pending and not several_may_wait()):
            session.commands.read_ready()
        # Asking each connection again whether it has something would cost two more system calls.
        if descriptors.get("wakeups") in readable:
            self.take_wakeups(wait=True)
        if descriptors.get("streams") in readable and session.reader.waiting:
            session.reader.take()

    def begin_tick(self) -> None:
        """Begin a turn of the event loop. Raises ServerUnreachable where the connection is broken."""
        session = self.session
        session.publisher_session.check_open()
        self.renew_logins()
        # Before the turn: what another thread settles from now on wakes the loop again.
        session.waker.clear()
        session.reader.apply_changes()

    def end_tick(self, *, waits: bool) -> None:
        """End a turn: send what is batched, and, with `waits`, block on what the event loop shall be woken by."""
        session = self.session
        if waits:
            self.start_waits(wakeups=not self.fetcher.comes_anyway())
            later_s = self.recheck_in_s()
            if later_s < LONG_RECHECK_S:
                self._hub.wake_in(later_s)
        if not self.fetcher.pool_is_concurrent:
            session.acknowledger.flush()
        else:
            session.acknowledger.flush_due()
        session.commands.flush()
        self._listen()

    def _listen(self) -> None:
        """Have the event loop read what this server is about to send."""
        session, listen = self.session, self._hub.listen
        wakeups, streams, commands = self._names
        listen(wakeups, session.wakeup_connection, self.take_wakeups, wanted=bool(session.waiter.waiting))
        listen(streams, session.stream_connection, self._take_streams, wanted=session.reader.waiting)
        wanted = (self.fetcher.pending is not None or self.fetcher.looks) and session.commands.connected
        listen(commands, session.commands, session.commands.read_ready, wanted=wanted)

    def _take_streams(self) -> None:
        self.take_broadcasts()

    def check_replies(self) -> None:
        """Look at what should have answered: a peer that went silent sends no end of file."""
        session = self.session
        if threading.get_ident() != session.loop_thread:
            # Celery 5.7 fires the loop's timers from another thread while its own waits for a prefork pool to end. It may wait in
            # the handler of a signal (a cold shutdown) that met it within a call: then it has the lock, and waits for us.
            if session.commands.lock.acquire(blocking=False):
                try:
                    session.acknowledger.flush()
                    with suppress(RedisError, OSError):
                        session.commands.read_ready()
                finally:
                    session.commands.lock.release()
            return
        self.check_overdue()
        # Replies to acks are read with the next claim; where none comes, here. So is the end of the connection.
        session.commands.read_ready()
        self.fetcher.check_pending()

    def check_overdue(self) -> None:
        """Read the waits that have ended, or should have: a peer that went silent sends no end of file."""
        self.session.service.check_thread()
        self.session.keep_alive()
        self.take_wakeups()
        self.take_broadcasts()
