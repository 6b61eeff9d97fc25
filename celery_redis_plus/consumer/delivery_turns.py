"""The consumers of one queue on one channel: its deliveries go to them in turn, as a server's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import Unacked

#: A message as its consumer gets it: a dict with `headers` and `properties`.
Payload: TypeAlias = dict[str, Any]
#: Gets a payload, and the record of the message; None where nothing will be settled.
Deliver: TypeAlias = "Callable[[Payload, Unacked | None], Any]"
#: Gets the tag of a consumer that the server has cancelled.
OnCancel: TypeAlias = Callable[[str], Any]


class DeliveryTurns:
    """The consumers of one queue on one channel, by their tags."""

    def __init__(self, ack: Callable[[str], None]) -> None:
        """Have no consumer yet; `ack` settles a message by its delivery tag."""
        self._ack = ack
        #: Consumer tag -> its function, and whether it takes messages without acks; the next one first.
        self._consumers: dict[str, tuple[Deliver, bool]] = {}
        #: Consumer tag -> its function for a cancel by the server, if it has one.
        self.on_cancel: dict[str, OnCancel | None] = {}

    def add_consumer(self, tag: str, deliver: Deliver, *, no_ack: bool, on_cancel: OnCancel | None = None) -> None:
        """Let one more consumer take its turn; with `no_ack` what it gets counts as settled."""
        self._consumers[tag] = deliver, no_ack
        self.on_cancel[tag] = on_cancel

    def remove(self, tag: str) -> None:
        """End a consumer; the others go on."""
        self._consumers.pop(tag, None)
        self.on_cancel.pop(tag, None)

    @property
    def no_ack(self) -> bool:
        """Whether all of them take messages without acks."""
        return all(no_ack for _, no_ack in self._consumers.values())

    def __call__(self, payload: Payload, unacked: Unacked | None) -> Any:
        """Hand a delivery to the consumer whose turn it is."""
        tag = next(iter(self._consumers))
        deliver, no_ack = consumer = self._consumers[tag]
        if len(self._consumers) > 1:
            del self._consumers[tag]
            self._consumers[tag] = consumer
        if no_ack and unacked is not None:
            self._ack(unacked.tag)
            unacked = None
        return deliver(payload, unacked)
