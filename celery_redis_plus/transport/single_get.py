"""The part of a channel that gets one message at a time, without a consumer."""

from __future__ import annotations

from typing import Any

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.unacked import DeliveryState
from celery_redis_plus.transport.amqp_errors import as_channel_errors
from celery_redis_plus.transport.consuming import Consuming
from celery_redis_plus.transport.delivered_message import Message


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
        if queue not in self._getting and queue not in self.queue_consumers.consumed:
            self.session.ownership.check(queue)
            # Its delayed and forgotten messages need somebody who looks after them, as a consumer would.
            self._getting.add(queue)
            self.session.watch_queue(queue)
        session = self.session
        claimed = self.queue_consumers.take_buffered(queue)
        unacked_messages = session.service.unacked_messages
        while (
            claimed is None
            or (payload := self.queue_consumers.read(claimed, unacked_messages.find(claimed.tag), begins=True)) is None
        ):
            asked_at = clock.now_s()
            found = self.delivery_loop.restricted_queues.get(queue)
            if not found:
                return None
            claimed = next(iter(unacked_messages.add(found, session.id, asked_at)), None)
        unacked = unacked_messages.find(claimed.tag)
        if unacked is not None:
            unacked.state = DeliveryState.DELIVERED
        session.tracking.delivered(payload["headers"], claimed.tag, queue)
        message = Message(payload, channel=self)
        if no_ack:
            self.qos.ack(claimed.tag)
        else:
            self.qos.append(message, claimed.tag)
        return message
