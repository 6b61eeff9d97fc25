"""The broadcasts of one channel over all lanes: a fanout exchange is in one lane, and the queues that are bound to it in any."""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING

from celery_redis_plus.connection.lanes import lane_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from celery_redis_plus.broker.exchanges.known_queues import KnownQueue
    from celery_redis_plus.consumer.delivery_turns import Deliver
    from celery_redis_plus.consumer.fanout_consumer import FanoutConsumer


class LaneFanouts:
    """Has the methods of a `FanoutConsumer`, and does them in the lanes that they concern."""

    def __init__(self, fanouts: Sequence[FanoutConsumer], read_record: Callable[[str], KnownQueue | None]) -> None:
        """Use one of each lane; `read_record` reads the record of a queue where that is."""
        self._fanouts = fanouts
        consumed: ChainMap[str, Deliver] = ChainMap(*(fanout.consumed for fanout in fanouts))  # type: ignore[arg-type]
        for fanout in fanouts:
            fanout.consumed = consumed
            fanout.read_record = read_record

    def _of(self, exchange: str) -> FanoutConsumer:
        return self._fanouts[lane_of(exchange, len(self._fanouts))]

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Take the cursor now, in the lane of the exchange."""
        self._of(exchange).bind(queue, exchange, routing_key)

    def unbind(self, queue: str, exchange: str, routing_key: str) -> bool:
        """End what `bind` began; return whether there was such a binding."""
        return self._of(exchange).unbind(queue, exchange, routing_key)

    def forget_queue(self, queue: str, exchanges: Collection[str]) -> None:
        """Forget the subscriptions of a queue that was deleted, and was bound to fanout `exchanges`."""
        for fanout in self._fanouts:
            fanout.forget_queue(queue, {exchange for exchange in exchanges if self._of(exchange) is fanout})

    def bound_to(self, queue: str) -> list[str]:
        """Return the fanout exchanges of all lanes that this connection has bound a queue to."""
        return [exchange for fanout in self._fanouts for exchange in fanout.bound_to(queue)]

    def consume(self, queue: str, *, no_ack: bool) -> None:
        """Read the queue's broadcasts of all lanes for this channel, which consumes it."""
        for fanout in self._fanouts:
            fanout.consume(queue, no_ack=no_ack)

    def read(self, queue: str) -> None:
        """Read the broadcasts of what the queue is bound to now, if this channel consumes it."""
        for fanout in self._fanouts:
            fanout.read(queue)

    def stop(self, queue: str) -> None:
        """Read no more broadcasts of a queue: its consumer ends."""
        for fanout in self._fanouts:
            fanout.stop(queue)

    def leave(self, queue: str) -> None:
        """Note that this connection consumes the queue no more."""
        for fanout in self._fanouts:
            fanout.leave(queue)

    def orphan(self) -> None:
        """Leave the positions of a broken connection to the next one."""
        for fanout in self._fanouts:
            fanout.orphan()
