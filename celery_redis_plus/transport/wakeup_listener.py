"""Which bells a connection's channels listen to, and what a bell that rang, or did not, gives them reason to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.channel import Channel
    from celery_redis_plus.transport.fetch_policy import FetchPolicy


class WakeupListener:
    """The blocked call on the bells of all channels of a connection."""

    def __init__(self, session: BrokerConnection, channels: list[Channel], pace: FetchPolicy) -> None:
        """Listen for `channels`, which the caller keeps up to date, as `pace` lets them claim."""
        self._session = session
        self._channels = channels
        self._pace = pace

    def arm(self) -> None:
        """Block on the bells of the queues for which there is credit, unless a call that covers them is out already."""
        waiter = self._session.waiter
        open_bells = self._open()
        if open_bells and not waiter.armed:
            waiter.arm(open_bells)
        elif waiter.armed and not set(open_bells) <= set(waiter.armed):
            waiter.wake()
            self.take(wait=True)
            if any(channel.hot for channel in self._channels):
                # A bell rang meanwhile: claim first.
                self._session.waker.wake()
            else:
                waiter.arm(open_bells)

    def take(self, *, wait: bool = False) -> None:
        """Read an ended blocked call: what rang is hot; a timeout is a reason to look at everything."""
        waiter = self._session.waiter
        if not waiter.armed or not (wait or waiter.arrived()):
            return
        bell = waiter.take()
        used, rests = False, self._pace.rest_s() > 0
        for channel in self._channels:
            if bell is None:
                channel.all_hot()
                used = True
            for queue in channel.consumed:
                if bell is not None and channel.bells[queue] == bell:
                    channel.hot[queue] = None
                    used = used or (not rests and channel.qos.credit(len(channel.buffer), self._pace.batch) > 0)
        if not used and bell is not None:
            # Woken for nothing: cancelled, or out of credit. The next in line shall look.
            waiter.notify(bell)

    def _open(self) -> tuple[bytes, ...]:
        """Return the bells of the queues for which there is credit; none while no claim may be made."""
        bells: dict[bytes, None] = {}
        for channel in () if self._pace.rest_s() else self._channels:
            if channel.consumed and channel.qos.credit(len(channel.buffer), self._pace.batch) > 0:
                bells.update(dict.fromkeys(channel.bells[queue] for queue in channel.consumed))
        return tuple(bells)
