"""The part of a channel that settles what was delivered, and says how much may be delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.transport.amqp_errors import channel_error

if TYPE_CHECKING:
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.transport.qos import QoS


class Settlements:
    """Settlements of one channel."""

    session: BrokerConnection
    qos: QoS

    def _check_open(self) -> None:
        raise NotImplementedError

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Settle a message as done; `multiple`: and all that were delivered before it.

        Works on a closed channel too: a task that outlived its connection is settled all the same.
        """
        for tag in self._up_to(delivery_tag) if multiple else (delivery_tag,):
            self.qos.ack(tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle a message that was not done: with `requeue` back in place, else to the queue's dead letters."""
        self.qos.reject(delivery_tag, requeue=requeue)

    def _up_to(self, delivery_tag: str) -> list[str]:
        tags = []
        for unacked in self.qos.unsettled():
            tags.append(unacked.tag)
            if unacked.tag == delivery_tag:
                return tags
        return [delivery_tag]

    def basic_recover(self, requeue: bool = False) -> None:
        """Give everything delivered and not settled back, to whoever claims it next."""
        self._check_open()
        if not requeue:
            raise channel_error("basic.recover without requeue is not supported", 540, "Channel.basic_recover")
        self.qos.restore_unacked()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be delivered and not settled; 0 is no limit."""
        self._check_open()
        self.qos.prefetch_count = prefetch_count or 0
        self.session.waker.wake()
