"""In which order the channels of a connection claim, and how those learn of messages that listen to no bell at the moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery_redis_plus.transport.turns import COLD_QUEUES

if TYPE_CHECKING:
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.channel import Channel
    from celery_redis_plus.transport.fetch_policy import FetchPolicy

#: After so many messages (an empty claim counts as one) the next claim of a connection asks as well whether there are messages
#: for its other channels. That costs a twentieth of a claim.
LOOK_EVERY = 4


class Rotation:
    """Whose turn it is to claim."""

    def __init__(self, session: BrokerConnection, channels: list[Channel], pace: FetchPolicy) -> None:
        """Rotate `channels`, which the caller keeps up to date."""
        self._session = session
        self._channels = channels
        self._pace = pace
        self._next = 0
        #: Messages that claims have brought since the last look.
        self._brought = 0
        #: Queues that were looked at, and some of which have messages.
        self._seen: Sequence[str] = ()

    def channels(self) -> list[Channel]:
        """Return the channels, the one first that has not claimed for the longest time."""
        at = self._next
        return [*self._channels[at:], *self._channels[:at]] if at else self._channels

    def claims(self, channel: Channel) -> None:
        """Note that a channel claims now; ask in the same write for messages of the channels that have no reason to.

        While one of them has work, nobody listens to the bells of the others.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        channels = self._channels
        if len(channels) == 1:
            return
        self._next = (channels.index(channel) + 1) % len(channels)
        # What this claim brings is unknown yet; as a rule it is as much as the one before.
        self._brought += max(1, channel.turns.brought)
        if self._brought < LOOK_EVERY:
            return
        self._brought = 0
        names = [
            queue
            for other in channels
            if not other.hot and other is not channel and other.qos.credit(len(other.buffer), self._pace.batch) > 0
            for queue in other.turns.cold(COLD_QUEUES)
        ]
        if names:
            ready = [self._session.keys.queue(name).ready for name in names]
            self._session.commands.command_nowait(
                "EXISTS", *ready, done=lambda reply, _: self._looked(names, reply), buffered=True
            )

    def _looked(self, names: Sequence[str], reply: Any) -> None:
        # In whatever thread reads the reply.
        if reply:
            self._seen = names

    def hear(self) -> None:
        """Give the channels whose queues were found to have messages a reason to claim."""
        if self._seen:
            names, self._seen = self._seen, ()
            for channel in self._channels:
                channel.hot.update((name, None) for name in names if name in channel.consumed)
