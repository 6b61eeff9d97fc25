"""Exchanges, queues and bindings: what a channel declares, deletes and shows. They are shared by all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.names import check_exchange_name, check_routing_key, check_table
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.exchanges.routing import Binding
from celery_redis_plus.errors import ExchangeNotFound, PreconditionFailed, QueueNotFound
from celery_redis_plus.transport.arguments import check_fanout_binding, check_queue_arguments

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber, SubscriberDeath
    from celery_redis_plus.consumer.fanout_consumer import FanoutConsumer
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.keys import FanoutKeys


class ExchangeOperations:
    """Deletes and shows exchanges."""

    def __init__(self, session: PublisherSession) -> None:
        self._session = session
        self._bindings = session.bindings

    def check_exists(self, name: str) -> None:
        """Raise ExchangeNotFound where there is no such exchange."""
        if self._bindings.record(name) is None:
            raise ExchangeNotFound(f"NOT_FOUND - no exchange {name!r}")

    def delete(self, exchange: str, *, if_unused: bool) -> None:
        """Delete an exchange and its bindings; its queues stay. `if_unused`: only if nothing is bound to it."""
        if if_unused and self._bindings.all(exchange):
            return
        record = self._bindings.record(exchange)
        self._bindings.delete(exchange)
        if record is not None and record.type == "fanout":
            session = self._session
            session.registry.delete(session.fanout_keys(exchange))

    def all_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) of every binding."""
        return (
            (binding.queue, exchange, binding.routing_key)
            for exchange in self._bindings.names()
            for binding in self._bindings.all(exchange)
        )

    # -- who subscribes to a fanout exchange ------------------------------------------------------------------------------

    def subscribers(self, exchange: str) -> list[Subscriber]:
        """Return who subscribes. Raises ExchangeNotFound, or PreconditionFailed where it is no fanout exchange."""
        return self._session.registry.subscribers(self._fanout_keys(exchange))

    def counters(self, exchange: str) -> dict[str, int]:
        """Return the counters of a fanout exchange. Raises as `subscribers` does."""
        return self._session.registry.counters(self._fanout_keys(exchange))

    def deaths(self, exchange: str, since_ms: int) -> list[SubscriberDeath]:
        """Return the subscribers that were declared dead after `since_ms`. Raises as `subscribers` does."""
        return self._session.registry.reap(self._fanout_keys(exchange), since_ms)[1]

    def _fanout_keys(self, exchange: str) -> FanoutKeys:
        record = self._bindings.record(check_exchange_name(exchange))
        if record is None:
            raise ExchangeNotFound(f"NOT_FOUND - no exchange {exchange!r}")
        if record.type != "fanout":
            raise PreconditionFailed(
                f"PRECONDITION_FAILED - exchange {exchange!r} is of type {record.type!r}; allowed is 'fanout'"
            )
        return self._session.fanout_keys(exchange)


class QueueOperations:
    """Declares, binds, purges, looks up and deletes queues. Raises ResourceLocked where a queue belongs to another connection."""

    def __init__(
        self, session: PublisherSession, fanout: Callable[[], FanoutConsumer], read_again: Callable[[str], None]
    ) -> None:
        """Work over `session`.

        Args:
            session: the connection's.
            fanout: returns what subscribes queues to fanout exchanges.
            read_again: called with the name of a queue whose subscriptions have changed, for all who consume it.
        """
        self._session = session
        self._queues = session.queues
        self._bindings = session.bindings
        self._fanout = fanout
        self._read_again = read_again

    def declare(
        self, name: str, arguments: Mapping[str, Any] | None, *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> int:  # fmt: skip
        """Declare a queue and return its ready messages. Raises PreconditionFailed where it exists with other arguments."""
        self._session.ownership.check(name, declares=exclusive)
        parsed = QueueArguments.parse(name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments)
        check_queue_arguments(name, parsed)
        declare = self._session.owned_queues.declare if parsed.exclusive else self._queues.declare
        return declare(name, parsed).ready

    def look_up(self, name: str) -> tuple[int, int]:
        """Return (ready messages, consumers) of a queue. Raises QueueNotFound where there is none."""
        self._session.ownership.check(name)
        if not self._queues.exists(name):
            raise QueueNotFound(f"NOT_FOUND - no queue {name!r}")
        return self._queues.sizes(name).ready, self._queues.consumer_count(name)

    def delete(self, queue: str, *, if_unused: bool, if_empty: bool) -> int:
        """Delete a queue, its messages and its bindings; return how many ready messages went with it."""
        session = self._session
        session.ownership.check(queue)
        deleted = self._queues.delete(queue, if_unused=if_unused, if_empty=if_empty)
        if deleted is None:
            return 0
        session.owned_queues.forget(queue)
        unbound = self._bindings.unbind_queues([queue])
        fanouts = {exchange for exchange, _ in unbound if self._bindings.is_fanout(exchange)}
        if fanouts or session.consumer is not None:
            # Else the queue has no broadcasts here. To load what reads them takes 0.3 s, and a consumer of a queue that is
            # declared again next would hear that it was deleted.
            self._fanout().forget_queue(queue, fanouts)
        return deleted

    def purge(self, queue: str) -> int:
        """Remove all waiting messages, ready and delayed; return how many."""
        self._session.ownership.check(queue)
        return self._queues.purge(queue)

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None:
        """Bind a queue to an exchange. On a fanout exchange, broadcasts are read from this moment on.

        Raises:
            PreconditionFailed: the exchange is a fanout, and the queue has an argument that no broadcast heeds.
        """
        self._session.ownership.check(queue)
        binding = Binding(queue, check_routing_key(routing_key), check_table(f"the binding of queue {queue!r}", arguments))
        # Read anew: it may have been declared again, as another type.
        record = self._bindings.record(check_exchange_name(exchange))
        fanout = record is not None and record.type == "fanout"
        if fanout:
            # A policy that fits other queues must not stop the subscribers of an exchange.
            check_fanout_binding(queue, self._queues.declared(queue), exchange)
        self._bindings.bind(exchange, binding)
        if fanout:
            self._fanout().bind(queue, exchange, routing_key)
            self._read_again(queue)

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None:
        """Remove a binding; one that does not exist is passed over."""
        self._session.ownership.check(queue)
        table = check_table(f"the binding of queue {queue!r}", arguments)
        self._bindings.unbind(check_exchange_name(exchange), Binding(queue, check_routing_key(routing_key), table))
        if self._fanout().unbind(queue, exchange, routing_key):
            self._read_again(queue)
