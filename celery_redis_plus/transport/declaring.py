"""The part of a channel that declares: exchanges, queues, bindings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord
from celery_redis_plus.broker.exchanges.routing import Binding
from celery_redis_plus.broker.queues.counters import Counters, read_counters
from celery_redis_plus.transport.amqp_errors import as_channel_errors, channel_error
from celery_redis_plus.transport.arguments import check_fanout_binding, check_queue_arguments

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Sizes
    from celery_redis_plus.consumer.broker_connection import BrokerConnection


class Declaring:
    """Exchanges, queues and bindings, shared by all processes."""

    session: BrokerConnection

    def _check_open(self) -> None:
        raise NotImplementedError

    # -- exchanges --------------------------------------------------------------------------------------------------------

    @as_channel_errors
    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - kombu's name
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange; `passive` only asks whether it exists.

        Raises:
            ChannelError: it exists with another declaration (406), or does not exist (404, `passive`).
        """
        self._check_open()
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        if passive:
            if self.session.bindings.record(name) is None:
                raise channel_error(f"NOT_FOUND - no exchange {name!r}", 404, "Channel.exchange_declare")
            return
        self.session.bindings.declare(name, ExchangeRecord(kind, durable, auto_delete, arguments or {}))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings; its queues stay. `if_unused`: only if nothing is bound to it."""
        self._check_open()
        if if_unused and self.session.bindings.all(exchange):
            return
        fanout = self.session.bindings.is_fanout(exchange)
        self.session.bindings.delete(exchange)
        if fanout:
            self.session.commands.command("UNLINK", *self.session.fanout_keys(exchange).everything())

    def exchange_bind(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: exchanges cannot be bound to exchanges."""
        raise NotImplementedError("exchange-to-exchange bindings are not supported: bind the queue to both exchanges")

    exchange_unbind = exchange_bind

    # -- queues -----------------------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **kwargs: Any) -> Any:
        """Return kombu's own queue options as `x-*` arguments."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    @as_channel_errors
    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue and return its name, its ready messages and its consumers.

        Raises:
            ChannelError: it exists with other arguments (406), or does not exist (404, `passive`); another connection declared it
                with `exclusive=True` (405).
        """
        self._check_open()
        name = queue or f"amq.gen-{uuid()}"
        queues = self.session.queues
        self.session.ownership.check(name, declares=exclusive and not passive)
        if passive:
            if not queues.exists(name):
                raise channel_error(f"NOT_FOUND - no queue {name!r}", 404, "Channel.queue_declare")
            return queue_declare_ok_t(name, queues.sizes(name).ready, queues.consumer_count(name))
        parsed = QueueArguments.parse(name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments)
        check_queue_arguments(name, parsed)
        sizes = self.session.declare_own(name, parsed) if parsed.exclusive else queues.declare(name, parsed)
        return queue_declare_ok_t(name, sizes.ready, 0)

    @as_channel_errors
    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int:
        """Delete a queue, its messages and its bindings; return how many ready messages went with it."""
        self._check_open()
        self.session.ownership.check(queue)
        deleted = self.session.queues.delete(queue, if_unused=if_unused, if_empty=if_empty)
        if deleted is None:
            return 0
        self.session.disown(queue)
        unbound = self.session.bindings.unbind_queues([queue])
        self._fanout_deleted(queue, {exchange for exchange, _ in unbound if self.session.bindings.is_fanout(exchange)})
        return deleted

    def after_reply_message_received(self, queue: str) -> None:
        """Delete a reply queue that has served."""
        self.queue_delete(queue)

    @as_channel_errors
    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Remove all waiting messages, ready and delayed; return how many."""
        self._check_open()
        self.session.ownership.check(queue)
        return self.session.queues.purge(queue)

    def queue_sizes(self, queue: str) -> Sizes:
        """Return how many messages a queue has: ready, delayed, unacked."""
        self._check_open()
        return self.session.queues.sizes(queue)

    @as_channel_errors
    def queue_counters(self, queue: str) -> Counters:
        """Return what has happened in a queue since it was declared, and what is in it, in one round trip.

        Raises:
            ChannelError: there is no such queue (404), or the channel is closed.
        """
        self._check_open()
        return read_counters(self.session.commands, self.session.keys, queue)

    # -- bindings ---------------------------------------------------------------------------------------------------------

    @as_channel_errors
    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange. On a fanout exchange, broadcasts are read from this moment on.

        Raises:
            ChannelError: the exchange is a fanout, and the queue has an argument that no broadcast heeds (406).
        """
        self._check_open()
        self.session.ownership.check(queue)
        name = exchange or "amq.direct"
        if self.session.bindings.is_fanout(name):
            check_fanout_binding(queue, self.session.queues.arguments(queue), name)
        self.session.bindings.bind(name, Binding(queue, routing_key or "", arguments or {}))
        if self.session.bindings.is_fanout(name):
            self._fanout_bound(queue, name, routing_key or "")

    @as_channel_errors
    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remove a binding; one that does not exist is passed over."""
        self._check_open()
        self.session.ownership.check(queue)
        name = exchange or "amq.direct"
        self.session.bindings.unbind(name, Binding(queue, routing_key or "", arguments or {}))
        self._fanout_unbound(queue, name, routing_key or "")

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) of every binding."""
        self._check_open()
        bindings = self.session.bindings
        return (
            (binding.queue, exchange, binding.routing_key) for exchange in bindings.names() for binding in bindings.all(exchange)
        )

    def get_exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        self._check_open()
        return self.session.bindings.names()

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return an exchange's bindings as kombu's transports do: (routing key, None, queue)."""
        self._check_open()
        return [(binding.routing_key, None, binding.queue) for binding in self.session.bindings.all(exchange)]

    def _fanout_bound(self, queue: str, exchange: str, routing_key: str) -> None:
        raise NotImplementedError

    def _fanout_unbound(self, queue: str, exchange: str, routing_key: str) -> None:
        raise NotImplementedError

    def _fanout_deleted(self, queue: str, exchanges: set[str]) -> None:
        raise NotImplementedError
