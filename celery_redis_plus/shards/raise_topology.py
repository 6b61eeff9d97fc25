"""What a raise of the number of shards declares in the new shards: queues, exchanges, bindings, durable subscribers."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import PreconditionFailed
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.keys import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord
    from celery_redis_plus.broker.exchanges.routing import Binding
    from celery_redis_plus.options import Options
    from celery_redis_plus.shards.place import Place
    from celery_redis_plus.shards.queue_move import QueueMove

logger = logging.getLogger(__name__)

#: Why a queue is paused whose messages are on their way.
PAUSED: Final = "its messages come from another shard: the number of shards is raised"


class Unread(NamedTuple):
    """Broadcasts that a durable subscriber has not read in a shard that ends."""

    exchange: str
    queue: str
    broadcasts: int


class RaiseTopology:
    """The declarations of one raise."""

    def __init__(self, old: Sequence[Place], new: Sequence[Place], options: Options) -> None:
        """Declare in the shards `new` what stands in the shards `old`."""
        self._old, self._new, self._options = old, new, options
        #: Shards that end.
        self._ending = [place for place in old if all(place is not other for other in new)]
        #: Bindings to fanout exchanges that are copied.
        self._copied: set[tuple[str, Binding]] = set()
        #: Queues that go with their clients, by the number of their shard.
        self._transient: set[tuple[int, str]] = set()

    # -- queues -----------------------------------------------------------------------------------------------------------

    def names(self, place: Place) -> list[str]:
        """Return the queues of a shard that do not end with a client: also those with `x-expires`."""
        found = place.queues.registry.lasting()
        for name in place.queues.registry.expiring():
            if (place.number, name) not in self._transient:
                declared = place.queues.declared(name)
                if declared is not None and (declared.auto_delete or declared.exclusive):
                    self._transient.add((place.number, name))
                elif declared is not None:
                    found.append(name)
        return found

    def declare_queue(self, move: QueueMove) -> None:
        """Declare a queue in its new shard, paused there."""
        name, source, target = move.name, move.source, move.target
        meta = source.keys.queue(name).meta
        newest, logged, groups = source.commands.command("HMGET", meta, "newest", "event_log", "group_rules")
        if not self._declare_as(name, source, target):
            return
        there = target.keys.queue(name).meta
        if groups:
            target.commands.command("HSETNX", there, "group_rules", groups)
        if logged:
            record = replace(EventLogSettings.of(self._options), wanted=True).record(target.keys.queue(name))
            target.commands.command("HSETNX", there, "event_log", record)
            target.commands.command("SADD", target.keys.event_logs, encode_name(name))
        if newest and int(newest) > int(target.commands.command("HGET", there, "newest") or 0):
            target.commands.command("HSET", there, "newest", newest)
        target.queues.registry.ensure_swept(name)
        pausing = Pausing(target.commands, target.keys)
        if pausing.paused(name) is None:
            pausing.pause(name, PAUSED)

    @staticmethod
    def is_prepared(move: QueueMove) -> bool:
        """Return whether a queue stands in its new shard, and is paused there."""
        fields = move.target.commands.command("HMGET", move.target.keys.queue(move.name).meta, "id", "paused")
        return all(field is not None for field in fields)

    @staticmethod
    def _declare_as(name: str, source: Place, target: Place) -> bool:
        """Declare a queue in a shard as it stands in another one; return whether it stands there."""
        declared = source.queues.declared(name)
        if declared is None:
            return False
        if source.commands.command("HEXISTS", source.keys.queue(name).meta, "assumed"):
            target.queues.restore(name)
            return True
        try:
            target.queues.declare(name, declared)
        except PreconditionFailed as error:
            logger.warning("%s: it keeps what it has in its new shard", error, extra={"queue": name})
        return True

    # -- exchanges --------------------------------------------------------------------------------------------------------

    def declare_exchanges(self) -> None:
        """Declare each exchange in its new shards, with the bindings of the queues that go there."""
        for place, name, record, lasting in self._exchanges():
            if record.type == "fanout":
                self._copy_fanout(place, name, lasting)
            else:
                self._new[shard_of(name, len(self._new))].bindings.declare(name, record)
                self._take_along(place, name, record, lasting)

    def follow(self, *, fanout: bool) -> None:
        """Take along the bindings that were made while the number was told, and remove those of queues that have left.

        Those with the old number see that bindings have changed, look for the number, and come along. Those with the new number
        would find a queue twice. A binding that is removed here is never brought back, whatever happens to it in its new shard;
        so those to fanout exchanges, which stay, are copied by the command alone that tells the number, or goes on with it.
        """
        for place, name, record, lasting in self._exchanges():
            if record.type != "fanout":
                gone = self._take_along(place, name, record, lasting)
                if gone:
                    place.bindings.unbind(name, *gone)
            elif fanout:
                self._copy_fanout(place, name, lasting)
            place.bindings.touch(name)

    def _exchanges(self) -> Iterator[tuple[Place, str, ExchangeRecord, set[str]]]:
        """Yield the exchanges of the old shards: shard, name, record, and the queues there that do not end with a client."""
        for place in self._old:
            lasting = set(self.names(place))
            for name in place.bindings.names():
                record = place.bindings.record(name)
                if record is not None:
                    yield place, name, record, lasting

    def _take_along(self, place: Place, exchange: str, record: ExchangeRecord, lasting: Iterable[str]) -> list[Binding]:
        """Bind the queues that go to other shards there; return their bindings."""
        gone = []
        for binding, target in self._leaving(place, exchange, lasting):
            target.bindings.declare(exchange, record)
            target.bindings.bind(exchange, binding)
            gone.append(binding)
        return gone

    def _leaving(self, place: Place, exchange: str, lasting: Iterable[str]) -> Iterator[tuple[Binding, Place]]:
        """Yield the bindings in a shard whose queues go to another one, with that one."""
        for binding in place.bindings.all(exchange):
            target = self._new[shard_of(binding.queue, len(self._new))]
            if target is not place and binding.queue in lasting:
                yield binding, target

    def _copy_fanout(self, place: Place, exchange: str, lasting: Iterable[str]) -> None:
        """Declare a fanout exchange in all new shards, with its bindings, and with records of its queues.

        A broadcast goes to one shard that can be reached: so each has all of it.
        """
        record = place.bindings.record(exchange)
        if record is None:
            return
        for target in self._new:
            target.bindings.declare(exchange, record)
        for binding in place.bindings.all(exchange):
            if binding.queue not in lasting or (exchange, binding) in self._copied:
                continue
            self._copied.add((exchange, binding))
            for target in self._new:
                if target is not place and not target.queues.exists(binding.queue):
                    self._declare_as(binding.queue, place, target)
                target.bindings.bind(exchange, binding)

    def complete(self) -> None:
        """Give the queues of fanout exchanges a record in each shard again: one that left a shard has none there."""
        for place in self._new:
            for exchange in place.bindings.of_type("fanout"):
                for binding in place.bindings.all(exchange):
                    home = self._new[shard_of(binding.queue, len(self._new))]
                    if home is not place and not place.queues.exists(binding.queue):
                        self._declare_as(binding.queue, home, place)

    # -- durable subscribers ----------------------------------------------------------------------------------------------

    def subscribe_durable(self) -> None:
        """Register the durable subscribers in the shards that are new, so that they miss no broadcast there."""
        added = [place for place in self._new if all(place is not other for other in self._old)]
        for place in self._old:
            for exchange in place.bindings.of_type("fanout"):
                durable = {one.queue for one in self._registry(place).subscribers(place.fanout(exchange)) if one.durable}
                for target in added if durable else ():
                    registry, keys = self._registry(target), target.fanout(exchange)
                    for queue in sorted(durable - {one.queue for one in registry.subscribers(keys) if one.durable}):
                        registry.unsubscribe(registry.subscribe(keys, queue, durable=True))
                    target.commands.read_until()

    def unread(self) -> list[Unread]:
        """Return what durable subscribers have not read in the shards that end."""
        return [
            Unread(exchange, one.queue, one.lag)
            for place in self._ending
            for exchange in sorted(place.bindings.of_type("fanout"))
            for one in self._registry(place).subscribers(place.fanout(exchange))
            if one.durable and one.lag
        ]

    def _registry(self, place: Place) -> SubscriberRegistry:
        options = self._options
        return SubscriberRegistry(place.commands, timeout_s=options.subscriber_timeout, max_age_s=options.stream_max_age)
