"""When a connection claims, for which of its channels, and whether it waits for the messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.transport.pending_claim import PendingClaim
from celery_redis_plus.transport.rotation import Rotation

if TYPE_CHECKING:
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.channel import Channel
    from celery_redis_plus.transport.fetch_policy import FetchPolicy
    from celery_redis_plus.transport.hub_registration import HubRegistration

#: Seconds for which a claim waits for more credit while most of the prefetch is being worked on.
GATHER_S = 0.002


class Fetcher:
    """The claims of one connection's channels."""

    def __init__(self, session: BrokerConnection, channels: list[Channel], pace: FetchPolicy, seat: HubRegistration) -> None:
        """Claim for `channels`, which the caller keeps up to date, as `pace` lets them, by the loop of `seat` if it is taken."""
        self._session = session
        self._channels = channels
        self._pace = pace
        self._seat = seat
        self.rotation = Rotation(session, channels, pace)
        #: The claim that is on its way.
        self.ahead = PendingClaim(session)
        #: Whether work goes on in other threads or processes, so that the loop is never kept from its turns by it.
        self.works_beside = False
        #: Until when a claim waits for more credit; 0: it does not.
        self._claim_at = 0.0

    def claim(self) -> bool:
        """Claim for one channel that has credit and reason to; return whether anything may have come by it."""
        if not self.ahead.out:
            self.rotation.hear()
            came = self._claim_for_next()
        else:
            came = self.ahead.take()
        # Before this channel's messages are delivered: the others' are claimed in between.
        self.rotation.hear()
        return came

    def _claim_for_next(self) -> bool:
        for channel in self.rotation.channels():
            channel.warm_up()
            if not channel.hot or (channel.buffer and not self._pace.overfetches):
                continue
            credit = channel.qos.credit(len(channel.buffer), self._pace.batch)
            if credit > 0 and not (self._pace.rest_s() or (self._seat.taken and self._gathers_credit(channel, credit))):
                self._claim_at = 0.0
                return self._claim_for(channel, credit)
        return False

    def _claim_for(self, channel: Channel, credit: int) -> bool:
        self._pace.claimed()
        self.rotation.claims(channel)
        queues = self._queues(channel)
        # In the claim's write, and before it: the room that they make may be what it looks for.
        self._session.settler.release(buffered=True)
        if self.works_beside and self._seat.taken and channel.qos.busy and self.ahead.send(channel, queues, credit):
            return False
        asked_at = clock.now_s()
        batch = self._session.claims.claim(channel, queues, credit)
        channel.cool(queues)
        channel.claimed(batch, asked_at)
        return True

    def _queues(self, channel: Channel) -> list[str]:
        return channel.turns.next_queues(few=self._session.claims.has_rules)

    @property
    def due(self) -> bool:
        """Whether a channel with credit and reason to claim would wait until others have delivered what they have."""
        batch = self._pace.batch
        return any(channel.buffer for channel in self._channels) and any(
            channel.hot and not channel.buffer and channel.qos.credit(0, batch) > 0 for channel in self._channels
        )

    def _gathers_credit(self, channel: Channel, credit: int) -> bool:
        """Return whether a claim had better wait: a pool frees credit one by one, and one round trip can serve several.

        Only with more than half of the prefetch in hand, so that nobody idles, and for `GATHER_S` at the most: a consumer that
        holds messages on purpose must not starve.
        """
        limit = channel.qos.prefetch_count
        if not limit or 2 * credit >= limit:
            return False
        now = time.monotonic()
        if not self._claim_at:
            self._claim_at = now + GATHER_S
            self._seat.wake_in(GATHER_S)
        return now < self._claim_at

    def comes_anyway(self) -> bool:
        """Return whether there will be a claim without a bell: one waits for more credit, or is on its way."""
        if self._claim_at < time.monotonic():
            self._claim_at = 0.0
        return bool(self._claim_at) or self.ahead.out
