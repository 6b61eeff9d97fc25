"""The part of a channel that gets one message at a time, without a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.unacked import DeliveryState
from celery_redis_plus.transport.amqp_errors import as_channel_errors
from celery_redis_plus.transport.consuming import Consuming
from celery_redis_plus.transport.delivered_message import Message

if TYPE_CHECKING:
    from celery_redis_plus.stored_message import Claimed


class SingleGet(Consuming):
    """`basic_get` of one channel."""

    @as_channel_errors
    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Message | None:
        """Return the queue's first message, or None.

        Raises:
            ChannelError: the channel is closed; 403: another consumer has the queue alone; 405: it has a single active consumer.
        """
        self._check_open()
        self.session.check_process()
        if queue not in self._getting and queue not in self.consumed:
            self.session.ownership.check(queue)
            # Its delayed and forgotten messages need somebody who looks after them, as a consumer would.
            self._getting.add(queue)
            self._watch(queue)
        session = self.session
        claimed = self._from_buffer(queue)
        register = session.service.register
        while claimed is None or (payload := self._payload(claimed, register.find(claimed.tag), begins=True)) is None:
            asked_at = clock.now_s()
            found = session.claims.get(queue)
            if not found:
                return None
            claimed = next(iter(register.admit(found, session.id, asked_at)), None)
        held = register.find(claimed.tag)
        if held is not None:
            held.stage = DeliveryState.DELIVERED
        session.tracking.delivered(payload["headers"], claimed.tag, queue)
        message = Message(payload, channel=self)
        if no_ack:
            self.qos.ack(claimed.tag)
        else:
            self.qos.append(message, claimed.tag)
        return message

    def _from_buffer(self, queue: str) -> Claimed | None:
        """Take the first message of the queue that a consumer of this channel has claimed, and not been given yet."""
        for claimed in self.buffer:
            if claimed.queue == queue:
                self.buffer.remove(claimed)
                return claimed
        return None
