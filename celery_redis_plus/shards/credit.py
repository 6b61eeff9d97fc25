"""The prefetch limit of a channel over several shards: one limit for all, and settlements by the shard of each message.

One limit, not a share for each shard: AMQP's `prefetch_count` is what a channel may hold. A worker with one process and shares
would hold a message for each shard, and keep all but one from idle workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.qos import QoS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from celery_redis_plus.broker.consumers.settlement import Settlement
    from celery_redis_plus.broker.consumers.unacked import Unacked
    from celery_redis_plus.transport.publishing import ExchangePublisher


class Parts(Protocol):
    """A channel over several shards, as far as its prefetch limit needs it."""

    @property
    def brokers(self) -> Sequence[Channel]:
        """The channels to the shards that are open."""

    def taken(self) -> int:
        """Return how many messages are claimed in all shards and not delivered, those included that may come yet."""


class SharedQoS(QoS):
    """What a channel has delivered from all shards, and how much more it may take."""

    def __init__(self, channel: Parts, *, overfetch_factor: float) -> None:
        """Start with nothing delivered, and no limit."""
        self._channel = channel
        self.prefetch_count = 0
        self.suspended = False
        self.count_carried = None
        self._overfetch_factor = overfetch_factor
        #: Who has delivered each message that is not settled, in the order of delivery; and some that are settled.
        self._order: dict[str, PartQoS] = {}

    def _parts(self) -> list[QoS]:
        return [part.qos for part in self._channel.brokers]

    @property
    def _delivered(self) -> dict[str, Unacked]:  # type: ignore[override]
        """The records of what is delivered and not settled in any shard."""
        return {unacked.tag: unacked for part in self._parts() for unacked in part.unsettled()}

    @property
    def delivered_count(self) -> int:
        """How many messages are delivered and not settled."""
        return sum([part.delivered_count for part in self._parts()])

    @property
    def busy(self) -> bool:
        """Whether something is delivered and not settled."""
        return self.delivered_count > 0

    def can_consume(self) -> bool:
        """Return whether one more message may be delivered."""
        limit = self.prefetch_count
        return not self.suspended and (not limit or self.counted() < limit)

    def claimable(self, most: int) -> int:
        """Return how many messages, at `most`, a claim may take beside those that all shards have."""
        taken = self._channel.taken()
        if self.suspended or self.asks_worker or not self.prefetch_count:
            return self.credit(taken, most)
        return max(min(int(self.prefetch_count * self._overfetch_factor) - self.counted() - taken, most), 0)

    def note(self, tag: str, part: PartQoS) -> None:
        """Note that a message is delivered now, by `part`."""
        # Behind the others, also where it was delivered before: `multiple` settles what came earlier.
        self._order.pop(tag, None)
        self._order[tag] = part
        if len(self._order) > 2 * self.delivered_count + 100:
            unsettled = self._delivered
            self._order = {
                known: by for known, by in self._order.items() if known in unsettled or (not by.is_open and by.knows(known))
            }

    def _of(self, tag: str) -> QoS | None:
        """Return who has delivered a message, over this channel or one that is closed; None for an unknown one."""
        found = self._order.get(tag)
        return found or next((part for part in self._parts() if part.knows(tag)), None)

    def knows(self, tag: str) -> bool:
        """Return whether the message is delivered and not settled, over this channel or another one of this process."""
        found = self._of(tag)
        return found is not None and found.knows(tag)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivered message, as kombu's transports do."""
        found = self._of(delivery_tag)
        if found is not None:
            found.append(message, delivery_tag)

    def get(self, delivery_tag: str) -> Any:
        """Return a delivered message; KeyError where it is settled, or where the application has dropped it."""
        found = self._of(delivery_tag)
        if found is None:
            raise KeyError(delivery_tag)
        return found.get(delivery_tag)

    def settle(self, tag: str, settlement: Settlement) -> None:
        """Settle a message or a broadcast; unknown tags, and second settlements, change nothing."""
        found = self._of(tag)
        if found is not None:
            found.settle(tag, settlement)

    def drop(self, tag: str) -> None:
        """Forget a delivered message that others hold by now."""
        found = self._of(tag)
        if found is not None:
            found.drop(tag)

    def leave(self, tag: str) -> None:
        """Have maintenance release a delivered message, once the server answers."""
        found = self._of(tag)
        if found is not None:
            found.leave(tag)

    def unsettled(self) -> list[Unacked]:
        """Return the records of what is delivered and not settled, in the order of delivery."""
        found = self._delivered
        return [found[tag] for tag in self._order if tag in found]

    def give_back(self, delivered: Iterable[Unacked]) -> None:
        """Give some deliveries back, waiting for the servers' answers. Raises as `CommandConnection.call` does."""
        wanted = list(delivered)
        for part in self._parts():
            part.give_back([unacked for unacked in wanted if part.has(unacked)])

    def leave_unsettled(self) -> None:
        """Leave what is unsettled to others."""
        for part in self._parts():
            part.leave_unsettled()

    def leave_to_parent(self) -> None:
        """Do nothing: the parts do, in a forked child."""


class PartQoS(QoS):
    """What a channel has delivered from one shard; the limit is that of all."""

    def __init__(self, channel: Channel, shared: SharedQoS) -> None:
        """Start with nothing delivered."""
        self._shared = shared
        super().__init__(channel)

    @property
    def is_open(self) -> bool:
        """Whether its shard's connection is; what a lost one has delivered is settled by maintenance."""
        return not self._session.broken

    @property
    def prefetch_count(self) -> int:
        """The limit of all shards together."""
        return self._shared.prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, _: int) -> None:
        """Leave it to the channel."""

    @property
    def suspended(self) -> bool:
        """Whether the channel is."""
        return self._shared.suspended

    @suspended.setter
    def suspended(self, _: bool) -> None:
        """Leave it to the channel."""

    @property
    def asks_worker(self) -> bool:
        """Whether Celery has replaced `can_consume` of the channel's limit."""
        return self._shared.asks_worker

    def can_consume(self) -> bool:
        """Return whether one more message may be delivered."""
        return self._shared.can_consume()

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages may be delivered; None is no limit."""
        return self._shared.can_consume_max_estimate()

    def credit(self, buffered: int, most: int) -> int:
        """Return how many messages, at `most`, a claim of this shard may take beside those that all shards have."""
        return self._shared.claimable(most)

    def deliver(self, message: Any, unacked: Unacked | None) -> None:
        """Note that a message is delivered; `unacked` is its record, None where it counts as settled."""
        super().deliver(message, unacked)
        if unacked is not None:
            self._shared.note(unacked.tag, self)


class PartChannel(Channel):
    """The channel to one shard: a whole channel, whose prefetch limit is that of all shards."""

    def __init__(self, transport: Any, shared: SharedQoS) -> None:
        """Open it over the transport to the shard."""
        self._shared = shared
        #: The tags of the consumers that it has.
        self.started: set[str] = set()
        #: The transport to its shard.
        self.transport, self._state = transport, transport.shard_state
        super().__init__(transport)

    def QoS(self, channel: Channel) -> PartQoS:  # noqa: N802 - kombu's name
        """Return the part of the limit; kombu calls it once."""
        return PartQoS(channel, self._shared)

    @property
    def number(self) -> int:
        """The number of its shard."""
        return int(self._transport.number)

    @property
    def is_ready(self) -> bool:
        """Whether its connection is open, as far as this process knows."""
        session = self.session
        return not (self.closed or session.broken or self._state.is_down) and session.commands.connected

    @property
    def publisher(self) -> ExchangePublisher:
        """Publishes to the queues and exchanges of the shard."""
        return self._publisher

    def taken(self) -> int:
        """Return how many messages are claimed here and not delivered, those included that may come yet."""
        if not self.has_consumers or self.closed:
            return 0
        consumers = self.queue_consumers
        return len(consumers.buffer) + self.delivery_loop.server.fetcher.pending_for(consumers)
