"""Hands mandatory messages that no queue takes to `on_return` of kombu's producers: AMQP's `basic.return`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from kombu.message import Message

from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.errors import Unroutable

#: Called with the error, the exchange, the routing key and the message.
OnReturn = Callable[[Unroutable, str, str, Message], object]


class ReturnsMessages:
    """A part of a channel."""

    @fork_safe_property
    def events(self) -> dict[str, set[OnReturn]]:
        """The callbacks of producers, under the names that kombu gives them: `basic_return`.

        Source: `kombu.messaging.Producer` and `amqp.channel.Channel._on_basic_return`.
        """
        return defaultdict(set)

    def return_message(self, error: Unroutable, message: Mapping[str, Any], exchange: str, routing_key: str) -> None:
        """Call the callbacks; without any raise `error`."""
        callbacks = tuple(self.events["basic_return"])
        if not callbacks:
            raise error
        place = {"exchange": exchange, "routing_key": routing_key}
        returned = Message(
            body=message["body"], content_type=message["content-type"], content_encoding=message["content-encoding"],
            headers=message["headers"], properties=message["properties"], delivery_info=place,
        )  # fmt: skip
        for callback in callbacks:
            callback(error, exchange, routing_key, returned)
