"""The prefetch limit of a channel over several lanes: one limit for all, and settlements by the lane of each message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from celery_redis_plus.transport.qos import QoS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from celery_redis_plus.broker.consumers.settlement import Settlement
    from celery_redis_plus.broker.consumers.unacked import Unacked
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.transport.channel import Channel


class LaneChannels(Protocol):
    """A channel over several lanes, as far as its prefetch limit needs it."""

    @property
    def lanes(self) -> Sequence[Channel]:
        """A channel of each lane."""

    def taken(self) -> int:
        """Return how many messages are claimed in all lanes and not delivered, those included that may come yet."""

    def lane_of(self, name: str) -> Channel:
        """Return the channel of the lane of a queue."""


class SharedQoS(QoS):
    """What all lanes of a channel have delivered, and how much more they may take together."""

    def __init__(self, channel: LaneChannels, prefetch_count: int = 0, *, overfetch_factor: float) -> None:
        """Start with nothing delivered. `prefetch_count` 0 is no limit."""
        self._whole = channel
        self.prefetch_count = prefetch_count or 0
        self.suspended = False
        self._overfetch_factor = overfetch_factor
        #: What was delivered and not settled, in the order of delivery; and some that is settled.
        self._order: dict[str, None] = {}

    @property
    def _lanes(self) -> list[QoS]:
        return [lane.qos for lane in self._whole.lanes]

    @property
    def _delivered(self) -> dict[str, Unacked]:  # type: ignore[override]
        """The records of what is delivered and not settled in any lane."""
        return {unacked.tag: unacked for lane in self._lanes for unacked in lane.unsettled()}

    def count(self) -> int:
        """Return how many messages are delivered and not settled."""
        return sum([lane.delivered_count for lane in self._lanes])

    def can_consume(self) -> bool:
        """Return whether one more message may be delivered."""
        limit = self.prefetch_count
        return not self.suspended and (not limit or self.count() < limit)

    def note(self, tag: str) -> None:
        """Note that a message is delivered now."""
        self._order[tag] = None
        if len(self._order) > 2 * self.count() + 100:
            unsettled = self._delivered
            self._order = {known: None for known in self._order if known in unsettled}

    def _of(self, tag: str) -> QoS:
        """Return the lane that has delivered a message, over this channel or one that is closed; the first for an unknown one."""
        lanes = self._lanes
        return next((lane for lane in lanes if lane.knows(tag)), lanes[0])

    def knows(self, tag: str) -> bool:
        """Return whether a lane has delivered the message, over this channel or another one, and it is not settled."""
        return any(lane.knows(tag) for lane in self._lanes)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivered message, as kombu's transports do."""
        self._of(delivery_tag).append(message, delivery_tag)

    def get(self, delivery_tag: str) -> Any:
        """Return a delivered message; KeyError where it is settled, or where the application has dropped it."""
        return self._of(delivery_tag).get(delivery_tag)

    def settle(self, tag: str, settlement: Settlement) -> None:
        """Settle a message or a broadcast; unknown tags, and second settlements, change nothing."""
        self._of(tag).settle(tag, settlement)

    def drop(self, tag: str) -> None:
        """Forget a delivered message that others hold by now."""
        self._of(tag).drop(tag)

    def leave(self, tag: str) -> None:
        """Have maintenance release a delivered message, once the server answers."""
        self._of(tag).leave(tag)

    def unsettled(self) -> list[Unacked]:
        """Return the records of what is delivered and not settled, in the order of delivery."""
        found = self._delivered
        return [found[tag] for tag in self._order if tag in found]

    def give_back(self, delivered: Iterable[Unacked]) -> None:
        """Give some deliveries back, waiting for the servers' answers. Raises as `CommandConnection.call` does."""
        wanted = list(delivered)
        for lane in self._lanes:
            # Not by tag alone: a lane counts its queues from another number, and after a flush perhaps from the same.
            lane.give_back([unacked for unacked in wanted if lane.has(unacked)])

    def forget(self) -> None:
        """Leave what is unsettled to others."""
        for lane in self._lanes:
            lane.forget()

    def leave_to_parent(self) -> None:
        """Do so in a forked child."""
        for lane in self._lanes:
            lane.leave_to_parent()


class LaneQoS(QoS):
    """What one lane of a channel has delivered; the limit is that of all lanes."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        """Start with nothing delivered."""
        self._shared: SharedQoS = channel.whole.qos
        self._whole: LaneChannels = channel.whole
        super().__init__(channel, prefetch_count)

    @property
    def prefetch_count(self) -> int:
        """The limit of all lanes together."""
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

    def can_consume(self) -> bool:
        """Return whether one more message may be delivered."""
        return self._shared.can_consume()

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages may be delivered; None is no limit."""
        return self._shared.can_consume_max_estimate()

    def credit(self, buffered: int, most: int) -> int:
        """Return how many messages, at `most`, a claim of this lane may take beside those that all lanes have."""
        return self._shared.credit(self._whole.taken(), most)

    def deliver(self, message: Any, unacked: Unacked | None) -> None:
        """Note that a message is delivered; `unacked` is its record, None where it counts as settled."""
        super().deliver(message, unacked)
        if unacked is not None:
            self._shared.note(unacked.tag)

    def _session_of(self, queue: str) -> ConsumerSession:
        """Return the connection to the lane of a queue: broadcasts come by that of their exchange."""
        return self._whole.lane_of(queue).consumer_session
