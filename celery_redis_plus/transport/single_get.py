"""The part of a channel that gets one message at a time, without a consumer."""

from __future__ import annotations

from typing import Any

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
        found = self.queue_consumers.get(queue)
        if found is None:
            return None
        payload, unacked = found
        message = Message(payload, channel=self, unacked=None if no_ack else unacked)
        if no_ack:
            self.qos.ack(unacked.tag)
        else:
            self.qos.deliver(message, unacked)
        return message
