"""Turns bells, claims and broadcasts into deliveries, under Celery's event loop and under `drain_events`.

One poller serves all channels of a connection. A turn delivers what is buffered, claims where there is credit and reason to,
and blocks on the bells when there is none. Its seat (`looping.py`) is the only owner of the connection's file descriptors in the
loop.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_redis_plus import clock
from celery_redis_plus.connection import forks
from celery_redis_plus.connection.poll import several_may_wait, wait_readable
from celery_redis_plus.transport.fetch_policy import FetchPolicy
from celery_redis_plus.transport.fetcher import Fetcher
from celery_redis_plus.transport.hub_registration import HubRegistration
from celery_redis_plus.transport.wakeup_listener import WakeupListener

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import ActiveTasks, UnackedMessage
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.channel import Channel

#: Seconds for which one turn of the event loop delivers: a solo worker runs the task inside the delivery, and remote control
#: must not wait for a whole batch.
TURN_S = 0.010
#: Broadcasts that are delivered in a row while messages may wait in queues.
BROADCASTS_IN_A_ROW = 32
#: Messages that are delivered in a row while broadcasts may have come.
MESSAGES_IN_A_ROW = 32
#: Seconds between two looks at connections that should have answered.
HEALTH_S = 5.0
#: Seconds; what a channel looks at later than this waits for a turn that comes anyway.
LATER_S = 2.5


class DeliveryLoop:
    """The consumer side of one connection."""

    def __init__(self, session: BrokerConnection) -> None:
        """Serve the channels that are added."""
        self._session = session
        self._channels: list[Channel] = []
        self._seat = HubRegistration(session.waker)
        self._pace = FetchPolicy(session.options, self._seat)
        self._bells = WakeupListener(session, self._channels, self._pace)
        self.claiming = Fetcher(session, self._channels, self._pace, self._seat)
        self._turn_number = 0
        #: The place of the channel that delivers next.
        self._next_channel = 0
        self._in_turn = False
        self._broadcasts_in_a_row = 0
        self._messages_in_a_row = 0
        forks.on_fork_in_child(self)

    def forked(self) -> None:
        """Leave the loop, and all that was delivered or claimed, to the parent, in a child."""
        self._seat.forked()
        for channel in self._channels:
            channel.forked()

    # -- channels ---------------------------------------------------------------------------------------------------------

    def add(self, channel: Channel) -> None:
        """Serve a channel."""
        self._channels.append(channel)

    def discard(self, channel: Channel) -> None:
        """Serve it no more."""
        if channel in self._channels:
            self._channels.remove(channel)

    @property
    def channels(self) -> list[Channel]:
        """The channels served."""
        return self._channels

    # -- one turn ---------------------------------------------------------------------------------------------------------

    def _deliver_one(self) -> bool:
        """Deliver one broadcast or message; return whether there was one that could be."""
        reader = self._session.reader
        if self._broadcasts_in_a_row < BROADCASTS_IN_A_ROW:
            if reader.ready and self._deliver_broadcast():
                return True
        elif self._channels:
            # Queues have their turn: nobody has listened to their bells meanwhile.
            self._bells.arm()
            self._bells.take()
            self.claiming.claim()
        self._broadcasts_in_a_row = 0
        if self._deliver_message():
            self._messages_in_a_row += 1
            if self._messages_in_a_row >= MESSAGES_IN_A_ROW:
                self._messages_in_a_row = 0
                self._arm_streams()
                self._take_broadcasts()
            return True
        return bool(reader.ready) and self._deliver_broadcast()

    def _deliver_broadcast(self) -> bool:
        delivery = self._session.reader.next()
        if delivery is None:
            return False
        self._broadcasts_in_a_row += 1
        consumer = delivery[0].consumer
        consumer.deliver_broadcast(delivery)
        if consumer.timers_filled:
            self._count_timers(consumer)
        return True

    def _deliver_burst(self, until: float) -> None:
        """Deliver more of the broadcasts that a read has brought, `until` then, and while queues need not wait for it."""
        session = self._session
        keeper = session.service.keeper
        while 0 < self._broadcasts_in_a_row < BROADCASTS_IN_A_ROW and time.monotonic() < until:
            if session.broken or (keeper is not None and keeper.ending()) or not self._deliver_broadcast():
                return

    def _deliver_message(self) -> bool:
        channels = self._channels
        if len(channels) > 1 and self.claiming.due:
            self.claiming.claim()
        for number in range(self._next_channel, self._next_channel + len(channels)):
            channel = channels[number % len(channels)]
            if channel.buffer and channel.qos.can_consume():
                self._turn_number += 1
                self._next_channel = number % len(channels) + 1
                self._session.settler.release_due()
                channel.deliver_next()
                if channel.timers_filled:
                    self._count_timers(channel)
                return True
        return False

    def _count_timers(self, channel: Channel) -> None:
        self._seat.fill_timer(channel.timers_filled)
        channel.timers_filled = 0

    def _later_s(self) -> float:
        """Return the seconds until a channel has to look at a queue by itself; infinity where none has to."""
        at = min((at for channel in self._channels for at in channel.later.values()), default=math.inf)
        return max(0.0, at - clock.now_s())

    def _arm(self, *, bells: bool = True) -> None:
        """Block on the streams, and on the bells if wanted, unless a call that covers them is out already."""
        if bells:
            self._bells.arm()
        self._arm_streams()

    def _arm_streams(self) -> None:
        reader = self._session.reader
        if reader.wants:
            rest_s = reader.rest_s()
            if not rest_s:
                reader.arm()
            elif self._seat.taken:
                self._seat.wake_in(rest_s)

    def _take_broadcasts(self) -> bool:
        """Read an ended read of the streams; return whether there may be something to deliver now."""
        reader = self._session.reader
        if not reader.arrived():
            return reader.look_around()
        reader.take()
        return True

    # -- without an event loop --------------------------------------------------------------------------------------------

    def drain(self, timeout_s: float | None) -> bool:
        """Deliver one message; return whether one came within `timeout_s` seconds. None waits for ever, 0 only looks.

        Where a read has brought several broadcasts, they are delivered for up to `TURN_S`, as kombu's redis transport does with
        what has arrived of them: the way here through kombu costs as much as a delivery.

        Raises:
            redis.exceptions.RedisError: as `translation.translate` names it; the connection is of no use any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        session = self._session
        service = session.service
        while True:
            if session.broken:
                session.check()
            began = time.monotonic()
            service.delivering.begin(session.id)
            try:
                if self._deliver_one():
                    if self._broadcasts_in_a_row:
                        self._deliver_burst(until=began + TURN_S)
                    return True
            finally:
                service.delivering.end()
            if session.reader.look_around() or self.claiming.claim():
                continue
            self._arm()
            left = HEALTH_S if deadline is None else deadline - time.monotonic()
            rest_s = session.reader.rest_s() or HEALTH_S
            wait_s = max(min(left, HEALTH_S, rest_s, self._pace.rest_s() or HEALTH_S, self._later_s()), 0.0)
            if self._wait(wait_s):
                # Before all else: what a bell has announced waits for nothing but this.
                self.claiming.claim()
            elif left <= 0:
                return False

    def _descriptors(self) -> dict[str, int]:
        """Return what to wait for, by name."""
        session = self._session
        found = {"waker": session.waker.fileno()}
        if session.waiter.armed:
            found["bells"] = session.wakeup_connection.fileno()
        if session.reader.armed:
            found["streams"] = session.stream_connection.fileno()
        if session.commands.connected and several_may_wait():
            found["commands"] = session.commands.fileno()
        return found

    def _wait(self, timeout_s: float) -> bool:
        """Wait for any of the descriptors and read what has come; return whether something has."""
        session = self._session
        descriptors = self._descriptors()
        readable = wait_readable(descriptors.values(), timeout_s)
        if not readable:
            session.service.check()
            # What should have answered may be overdue: a peer that went silent sends no end of file.
            self._bells.take()
            self._take_broadcasts()
            return False
        if descriptors["waker"] in readable:
            session.waker.clear()
        if descriptors.get("commands") in readable or (session.commands.has_pending and not several_may_wait()):
            session.commands.read_ready()
        # Asking each wire again whether it has something would cost two more system calls.
        if descriptors.get("bells") in readable:
            self._bells.take(wait=True)
        if descriptors.get("streams") in readable and session.reader.armed:
            session.reader.take()
        return True

    # -- under Celery's event loop ----------------------------------------------------------------------------------------

    def attach(self, loop: Any) -> None:
        """Serve from `loop`; calling it again, or with another loop, leaves no trace of before."""
        self.detach()
        self._session.loop_thread = threading.get_ident()
        self._seat.take(loop, self.on_tick, self._on_timer)

    def keep(self, held: UnackedMessage) -> bool:
        """Keep an ack of the loop's own thread for the loop's next write, which claims as well; return False where it cannot.

        In a turn, in which a solo worker runs its tasks, the duties' thread sees to it that no ack waits for a long one. Outside
        of turns not when the worker was told to end: then the loop stands still while its pool finishes what it has.
        """
        service = self._session.service
        if self._in_turn:
            if held.queue in service.register.limited:
                return False
        elif service.keeper is not None and service.keeper.ending():
            return False
        self._session.settler.gather(held)
        return True

    def turns_when_woken(self, keeper: ActiveTasks | None) -> bool:
        """Return whether the loop, which another thread asks about, takes a turn when it is woken."""
        return self._seat.taken and (keeper is None or not keeper.ending())

    @property
    def attached(self) -> bool:
        """Whether a loop serves it, and will so tell its consumers when the connection breaks."""
        return self._seat.taken

    def detach(self) -> None:
        """Leave the loop."""
        if self._seat.taken:
            self._session.loop_thread = None
            with suppress(RedisError, OSError):
                # What failed is broken by now, and its next user hears of it.
                self.claiming.ahead.finish()
            self._session.settler.release()
            self._seat.leave()

    def on_tick(self) -> None:
        """Take one turn before the loop sleeps. Raises what a broken connection raises; Celery then reconnects."""
        session = self._session
        session.check()
        # Before the turn: what another thread settles from now on wakes the loop again.
        session.waker.clear()
        session.reader.look_around()
        self._seat.begin_turn()
        delivered_before = self._turn_number
        more = self._turn()
        if not self._seat.taken:
            return
        if more or self._seat.turns_again(delivered=self._turn_number != delivered_before):
            session.waker.wake()
        else:
            self._arm(bells=not self.claiming.comes_anyway())
            later_s = self._later_s()
            if later_s < LATER_S:
                self._seat.wake_in(later_s)
        if not self.claiming.works_beside:
            session.settler.release()
        else:
            session.settler.release_due()
        session.commands.flush()
        self._seat.listen("bells", session.wakeup_connection, self._on_bells, wanted=bool(session.waiter.armed))
        self._seat.listen("streams", session.stream_connection, self._on_streams, wanted=session.reader.armed)
        self._seat.listen(
            "commands",
            session.commands,
            session.commands.read_ready,
            wanted=self.claiming.ahead.out and session.commands.connected,
        )

    def _turn(self) -> bool:
        """Deliver and claim for `TURN_S` seconds; return whether there is more to do at once."""
        if self._in_turn:
            return True
        self._in_turn = True
        try:
            deadline = time.monotonic() + TURN_S
            keeper = self._session.service.keeper
            with self._session.service.delivering.of(self._session.id):
                while self._deliver_one() or self.claiming.claim():
                    # A solo worker has run a task in there: one that was told to end shall not begin the next.
                    if time.monotonic() > deadline or (keeper is not None and keeper.ending()):
                        return True
        except BaseException:
            # It ends the loop: a cold shutdown comes out of a task.
            self._session.settler.release()
            raise
        else:
            return False
        finally:
            self._in_turn = False

    def _on_bells(self) -> None:
        self._bells.take()

    def _on_streams(self) -> None:
        self._take_broadcasts()

    def _on_timer(self) -> None:
        """Look at what should have answered: a peer that went silent sends no end of file."""
        if threading.get_ident() != self._session.loop_thread:
            # Celery 5.7 fires the loop's timers from another thread while its own waits for a prefork pool to end. It may wait in
            # the handler of a signal (a cold shutdown) that met it within a call: then it has the lock, and waits for us.
            if self._session.commands.lock.acquire(blocking=False):
                try:
                    self._session.settler.release()
                    with suppress(RedisError, OSError):
                        self._session.commands.read_ready()
                finally:
                    self._session.commands.lock.release()
            return
        self._session.service.check()
        self._bells.take()
        self._take_broadcasts()
        # Replies to acks are read with the next claim; where none comes, here. So is the end of the connection.
        self._session.commands.read_ready()
        self.claiming.ahead.check()
