"""How much a channel may still deliver and claim, as its `QueueConsumers` asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_redis_plus.broker.consumers.unacked import Unacked


class Credit(Protocol):
    """The prefetch limit of one channel, and the messages that it has delivered and not settled."""

    #: How many messages may be delivered and not settled; 0 is no limit.
    prefetch_count: int

    @property
    def busy(self) -> bool:
        """Whether a message is delivered and not settled."""

    def can_consume(self) -> bool:
        """Return whether one more message may be delivered."""

    def credit(self, buffered: int, most: int) -> int:
        """Return how many messages, at `most`, a claim may take beside the `buffered` ones."""

    def unsettled(self) -> list[Unacked]:
        """Return the records of what is delivered and not settled, in the order of delivery."""

    def give_back(self, delivered: Iterable[Unacked]) -> None:
        """Give deliveries back, waiting for the server's answer. Raises as `CommandConnection.call` does."""

    def forget(self) -> None:
        """Leave what is unsettled to others."""

    def ack(self, delivery_tag: str) -> None:
        """Settle a message as done."""

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle a message that was not done: to the dead letters, or back in place."""
