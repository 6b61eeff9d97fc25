"""The part of a channel that follows the bindings to fanout exchanges, and tells who subscribes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus.transport.amqp_errors import as_channel_errors, channel_error

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber, SubscriberDeath
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.fanout_consumer import FanoutConsumer
    from celery_redis_plus.keys import FanoutKeys


class Broadcasting:
    """Fanout exchanges, as one channel uses them."""

    session: BrokerConnection
    fanout_consumer: FanoutConsumer
    connection: Any

    def _check_open(self) -> None:
        raise NotImplementedError

    # -- bindings ----------------------------------------------------------------------------------------------------------

    def _fanout_bound(self, queue: str, exchange: str, routing_key: str) -> None:
        self.fanout_consumer.bind(queue, exchange, routing_key)
        self._read_anew(queue)

    def _fanout_unbound(self, queue: str, exchange: str, routing_key: str) -> None:
        if self.fanout_consumer.unbind(queue, exchange, routing_key):
            self._read_anew(queue)

    def _fanout_deleted(self, queue: str, exchanges: set[str]) -> None:
        self.fanout_consumer.forget_queue(queue, exchanges)

    def _read_anew(self, queue: str) -> None:
        for channel in self.connection.channels:
            channel.fanout_consumer.read(queue)

    # -- who subscribes ---------------------------------------------------------------------------------------------------

    @as_channel_errors
    def fanout_subscribers(self, exchange: str) -> list[Subscriber]:
        """Return who subscribes to a fanout exchange, in all processes, and how far each one is; the slowest first.

        What this process has processed since its last report, a second ago at most, is not in it.

        Raises:
            ChannelError: there is no such exchange (404), or it is no fanout exchange (406).
        """
        return self.session.registry.subscribers(self._fanout_exchange(exchange, "fanout_subscribers"))

    @as_channel_errors
    def fanout_deaths(self, exchange: str, since_ms: int = 0) -> list[SubscriberDeath]:
        """Return the subscribers of a fanout exchange that were declared dead after `since_ms`, in the last ten minutes.

        `since_ms` is ms since the epoch on the server's clock, such as the last death's `at_ms`.

        Raises:
            ChannelError: there is no such exchange (404), or it is no fanout exchange (406).
        """
        return self.session.registry.reap(self._fanout_exchange(exchange, "fanout_deaths"), since_ms)[1]

    def _fanout_exchange(self, exchange: str, method: str) -> FanoutKeys:
        self._check_open()
        record = self.session.bindings.record(exchange)
        if record is None:
            raise channel_error(f"NOT_FOUND - no exchange {exchange!r}", 404, f"Channel.{method}")
        if record.type != "fanout":
            raise channel_error(
                f"PRECONDITION_FAILED - exchange {exchange!r} is of type {record.type!r}; allowed is 'fanout'",
                406,
                f"Channel.{method}",
            )
        return self.session.fanout_keys(exchange)
