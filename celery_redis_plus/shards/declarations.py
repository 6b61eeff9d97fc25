"""What a channel over several shards declares, deletes and shows: each exchange and queue on the shards that need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.utils.uuid import uuid

from celery_redis_plus.broker.arguments.names import check_exchange_name
from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.shards.parts import PartedChannel
from celery_redis_plus.transport.amqp_errors import CHANNEL_ERRORS, amqp_method
from celery_redis_plus.transport.channel import Channel

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber, SubscriberDeath
    from celery_redis_plus.broker.queues.counters import Counters
    from celery_redis_plus.broker.queues.queues import Sizes
    from celery_redis_plus.shards.credit import PartChannel
    from celery_redis_plus.shards.topology import DeclaredQueue

Arguments = Mapping[str, Any] | None

#: How kombu's names of queues for replies to remote control end (`kombu.pidbox.Mailbox`, 5.6 and 5.7): clients publish to them by
#: a binding, never by their name, which alone says on which shard a queue is.
REPLIES = ".pidbox"


class DeclaringChannel(PartedChannel):
    """A channel that declares on several shards."""

    exchange_bind = exchange_unbind = Channel.exchange_bind
    prepare_queue_arguments = Channel.prepare_queue_arguments
    after_reply_message_received = Channel.after_reply_message_received

    def is_fanout(self, exchange: str) -> bool:
        """Tell whether an exchange is a fanout exchange."""
        raise NotImplementedError

    # -- exchanges --------------------------------------------------------------------------------------------------------

    @amqp_method
    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - kombu's name
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Arguments = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange, as `Channel.exchange_declare`: on its own shard, and with each queue that is bound to it there.

        Where its own shard is down, another one tells whether it stands as it is declared.
        """
        name = check_exchange_name(exchange or f"amq.{type or 'direct'}")
        declaration: dict[str, Any] = {"type": type, "durable": durable, "auto_delete": auto_delete, "arguments": arguments}
        part = self._first_live(name)
        part.exchange_declare(name, passive=passive, **declaration)
        if not passive:
            self.topology.note_exchange(name, declaration)

    @amqp_method
    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings on all shards; its queues stay. `if_unused`: only if nothing is bound to it."""
        parts = self.all_brokers()
        if if_unused and any(part.get_table(exchange) for part in parts):
            return
        self.topology.exchanges.pop(exchange, None)
        for part in parts:
            part.exchange_delete(exchange)

    @amqp_method
    def list_bindings(self) -> list[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) of every binding."""
        return list(dict.fromkeys(binding for part in self.all_brokers() for binding in part.list_bindings()))

    @amqp_method
    def get_exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        return list(dict.fromkeys(name for part in self.all_brokers() for name in part.get_exchanges()))

    @amqp_method
    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return an exchange's bindings as kombu's transports do: (routing key, None, queue)."""
        return list(dict.fromkeys(binding for part in self.all_brokers() for binding in part.get_table(exchange)))

    @amqp_method
    def fanout_subscribers(self, exchange: str) -> list[Subscriber]:
        """Return who subscribes to a fanout exchange, as `Channel.fanout_subscribers`, on the shard that its broadcasts go to."""
        return self.of_broadcasts(exchange).fanout_subscribers(exchange)

    @amqp_method
    def fanout_counters(self, exchange: str) -> dict[str, int]:
        """Return the counters of a fanout exchange, as `Channel.fanout_counters`, on that shard."""
        return self.of_broadcasts(exchange).fanout_counters(exchange)

    @amqp_method
    def fanout_deaths(self, exchange: str, since_ms: int = 0) -> list[SubscriberDeath]:
        """Return the subscribers of a fanout exchange that were declared dead, as `Channel.fanout_deaths`, on that shard."""
        return self.of_broadcasts(exchange).fanout_deaths(exchange, since_ms)

    # -- queues -----------------------------------------------------------------------------------------------------------

    @amqp_method
    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Arguments = None,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue, as `Channel.queue_declare`, on its shard.

        One for replies to remote control whose shard is down is declared on the next one: it is found there by its binding. Other
        transient queues wait for their shard: they may be bound to a fanout exchange, and then hear over the other shards.
        """
        name = check_queue_name(queue or f"amq.gen-{uuid()}")
        if passive:
            return self.on(name, lambda part: part.queue_declare(name, passive=True))
        declaration: dict[str, Any] = {
            "durable": durable,
            "exclusive": exclusive,
            "auto_delete": auto_delete,
            "arguments": arguments,
        }
        before = self.topology.queues.get(name)
        was = None if before is None else (before.declaration, before.placed)
        known = self.topology.note_queue(name, declaration)
        try:
            return self._declare(name, known)
        except BaseException:
            # Else it would be declared so again when its shard is back, and refused again.
            if was is None:
                self.topology.queues.pop(name, None)
            else:
                known.declaration, known.placed = was
            raise

    def _declare(self, name: str, known: DeclaredQueue) -> Any:
        declaration = known.declaration
        if known.is_transient and not known.broadcast and name.endswith(REPLIES):
            own = shard_of(name, len(self.numbers))
            number = self._first_live(name).number
            known.placed = None if number == own else number
        nothing = queue_declare_ok_t(name, 0, 0)
        return self.defer(
            self._transport.number_of(name), name, lambda part: part.queue_declare(name, **declaration), nothing, declares=True
        )  # fmt: skip

    @amqp_method
    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int:
        """Delete a queue with its messages and bindings, as `Channel.queue_delete`; return how many ready messages it had."""
        name = check_queue_name(queue)
        known = self.topology.queues.get(name)
        deleted = self.on(name, lambda part: part.queue_delete(name, if_unused, if_empty))
        # Another connection may have bound it to a fanout exchange.
        others = self.numbers if known is None or known.broadcast else ()
        for number in others:
            if number != self._transport.number_of(name):
                self.defer(number, name, lambda part: part.queue_delete(name, if_unused, if_empty))
        self.topology.queues.pop(name, None)
        return int(deleted)

    @amqp_method
    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Remove all waiting messages, ready and delayed; return how many."""
        return int(self.on(queue, lambda part: part.queue_purge(queue)))

    @amqp_method
    def queue_sizes(self, queue: str) -> Sizes:
        """Return how many messages a queue has: ready, delayed, unacked."""
        return self.on(queue, lambda part: part.queue_sizes(queue))

    @amqp_method
    def queue_counters(self, queue: str) -> Counters:
        """Return what has happened in a queue since it was declared, as `Channel.queue_counters`."""
        return self.on(queue, lambda part: part.queue_counters(queue))

    @amqp_method
    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Arguments = None, **kwargs: Any
    ) -> None:
        """Bind a queue to an exchange, as `Channel.queue_bind`, on its shard.

        To a fanout exchange it is bound on all shards: a broadcast goes to one that can be reached.
        """
        name, exchange = check_queue_name(queue), exchange or "amq.direct"
        binding = (exchange, routing_key or "", arguments)
        known = self.topology.queues.get(name)
        broadcast, added, heard = self.is_fanout(exchange), False, False
        if broadcast and known is None:
            known = self._as_it_stands(name)
        if known is not None:
            heard = known.broadcast
            known.broadcast = heard or broadcast
            added = binding not in known.bindings
            if added:
                known.bindings.append(binding)
        try:
            for number in self.numbers if broadcast else (self._transport.number_of(name),):
                self.defer(number, name, lambda part: self._bind(part, name, binding, broadcast=broadcast))
        except CHANNEL_ERRORS:
            if added and known is not None:
                known.bindings.remove(binding)
                known.broadcast = heard
            raise

    def _bind(self, part: PartChannel, queue: str, binding: tuple[str, str, Any], *, broadcast: bool) -> None:
        exchange, routing_key, arguments = binding
        self.topology.declare_exchange(exchange, part)
        if broadcast and part.number != self._transport.number_of(queue):
            part.queue_declare(queue, **self.topology.queues[queue].declaration)
        part.queue_bind(queue, exchange, routing_key, arguments)

    def _as_it_stands(self, queue: str) -> DeclaredQueue:
        """Remember a queue that another connection has declared."""
        found = self.of_queue(queue).session.queues.arguments(queue)
        declaration: dict[str, Any] = {"durable": True}
        if found is not None:
            declaration = {name: getattr(found, name) for name in ("durable", "exclusive", "auto_delete", "arguments")}
        return self.topology.note_queue(queue, declaration)

    @amqp_method
    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Arguments = None, **kwargs: Any
    ) -> None:
        """Remove a binding; one that does not exist is passed over."""
        name, exchange = check_queue_name(queue), exchange or "amq.direct"
        binding = (exchange, routing_key or "", arguments)
        known = self.topology.queues.get(name)
        if known is not None and binding in known.bindings:
            known.bindings.remove(binding)
        for number in self.numbers if self.is_fanout(exchange) else (self._transport.number_of(name),):
            self.defer(number, name, lambda part: part.queue_unbind(name, exchange, routing_key, arguments))
