"""Publishing to exchanges over several shards: each shard gives a message to the queues that are bound there.

A broadcast goes to one shard that can be reached, since its queues hear over all of them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.names import check_exchange_name, check_routing_key
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.tracking_request import TRACK
from celery_redis_plus.errors import NotSupported, PublishRefused, ShardUnreachable
from celery_redis_plus.shards.parts import RECONNECT_S
from celery_redis_plus.shards.refusals import REFUSALS
from celery_redis_plus.transport.arguments import PASSED_ON, check_properties
from celery_redis_plus.transport.framework_hooks import ignores_unroutable
from celery_redis_plus.transport.publishing import ATTEMPT, LOCAL_PROPERTIES, tell_duplicate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redis_plus.broker.exchanges.bindings import Check
    from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord
    from celery_redis_plus.shards.credit import PartChannel
    from celery_redis_plus.shards.parts import PartedChannel


logger = logging.getLogger(__name__)

#: Seconds between two looks whether the number of shards was raised.
LOOK_S = 1.0


class ShardsPublisher:
    """Publishes to exchanges over all shards."""

    def __init__(self, channel: PartedChannel) -> None:
        """Publish over the parts of `channel`."""
        self._channel = channel
        self._look_at = 0.0

    # -- exchanges --------------------------------------------------------------------------------------------------------

    def is_fanout(self, exchange: str) -> bool:
        """Tell whether the exchange is a fanout exchange. Raises ShardUnreachable where no shard can be asked."""
        declared = self._channel.topology.exchanges.get(exchange)
        if declared is not None:
            return bool(declared["type"] == "fanout")
        record = self._record(exchange)
        return record is not None and record.type == "fanout"

    def _record(self, exchange: str) -> ExchangeRecord | None:
        """Return the record of an exchange, of the first shard that has one: its own, or one on which a queue is bound to it.

        Raises ShardUnreachable where no shard can be asked.
        """
        is_asked, record = False, None
        for part in self._channel.live(exchange):
            with suppress(ShardUnreachable):
                record = self._channel.over(part.number, partial(_record_of, exchange=exchange), RECONNECT_S)
                is_asked = True
            if record is not None:
                break
        if not is_asked:
            raise self._channel.unreachable(exchange)
        return record

    def _alternates(self, exchange: str) -> Iterator[str]:
        """Yield the exchanges that get unroutable messages of `exchange`, as `Bindings.alternates`."""
        met = {exchange}
        while (record := self._record(exchange)) is not None:
            alternate = record.alternate_exchange
            if alternate is None or alternate in met or self._record(alternate) is None:
                return
            met.add(alternate)
            yield alternate
            exchange = alternate

    # -- messages ---------------------------------------------------------------------------------------------------------

    def publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, *, mandatory: bool, immediate: bool = False, **_: Any
    ) -> str | None:  # fmt: skip
        """Publish a message to an exchange that has a name. Returns and raises as `Channel.basic_publish`."""
        if immediate:
            raise NotSupported("NOT_IMPLEMENTED - immediate=True is not supported, as in RabbitMQ; allowed is mandatory=True")
        exchange, routing_key = check_exchange_name(exchange), check_routing_key(routing_key or "")
        self._look_at_number(exchange)
        properties = message["properties"]
        if TRACK in properties:
            return self._publish_tracked(message, exchange, routing_key, mandatory=mandatory)
        if not PASSED_ON.issuperset(properties):
            check_properties(properties, message["headers"], LOCAL_PROPERTIES)
        attempt: PublishAttempt = properties.pop(ATTEMPT, None) or PublishAttempt()
        properties["delivery_info"] = {**properties.get("delivery_info", {}), "exchange": exchange, "routing_key": routing_key}
        try:
            self._send(message, exchange, routing_key, attempt, mandatory=mandatory)
        except PublishRefused:
            # The outcome is known, too.
            raise
        except BaseException:
            properties[ATTEMPT] = attempt
            raise
        return tell_duplicate(message, attempt)

    def _look_at_number(self, exchange: str) -> None:
        """See once a second whether there are more shards by now, where queues may be bound: then kombu connects again."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        for part in islice(self._channel.live(exchange), 1):
            with suppress(ShardUnreachable):
                self._channel.over(part.number, _see_number)

    def _send(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> None:  # fmt: skip
        taken = self._take(message, exchange, routing_key, attempt, mandatory=mandatory) or any(
            self._take(message, other, routing_key, attempt, mandatory=True) for other in self._alternates(exchange)
        )
        if not taken:
            self._unrouted(message, exchange, routing_key, attempt, mandatory=mandatory)
        if self._channel.options.wait_replicas and not self._ignores(exchange):
            self._channel.of_broadcasts(exchange).session.publisher.check_replicas(attempt)

    def _ignores(self, exchange: str) -> bool:
        return ignores_unroutable(self._channel.options.ignore_unroutable_exchanges, exchange)

    def _take(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> bool:  # fmt: skip
        """Give a message to an exchange; return False where it has no recipient on any shard."""
        if self.is_fanout(exchange):
            return self._channel.over_first(
                self._for_broadcasts(exchange),
                exchange,
                lambda part: part.publisher.take(message, exchange, routing_key, attempt, mandatory=mandatory),
            )
        return self._route(message, exchange, routing_key, attempt)

    def _for_broadcasts(self, exchange: str) -> Iterator[PartChannel]:
        """Yield the shards for broadcasts of a fanout exchange: its own one first, unless subscribers are missing there.

        Those that began while it was down come to it when they notice that it is back, and are found on the next one. So a new
        connection to a shard compares the two, once.
        """
        parts = self._channel.live(exchange)
        in_turn = list(islice(parts, 1))
        if in_turn and exchange not in in_turn[0].transport.complete:
            in_turn += islice(parts, 1)
            if len(in_turn) > 1 and self._lacks(in_turn[0], in_turn[1], exchange):
                yield in_turn.pop()
                yield from parts
        yield from in_turn
        yield from parts

    def _lacks(self, part: PartChannel, other: PartChannel, exchange: str) -> bool:
        """Return whether a fanout exchange has subscribers on another shard that it lacks on one; remember that it lacks none."""
        try:
            there, here = (
                Counter(self._channel.over(one.number, partial(_subscribers, exchange=exchange))) for one in (other, part)
            )
        except (ShardUnreachable, *REFUSALS) as error:
            logger.debug("%s", error)
            return False
        if not there - here:
            part.transport.complete.add(exchange)
        return bool(there - here)

    def _route(self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt) -> bool:
        """Give a message to the queues of all shards; return False where none takes it.

        By the bindings known here, as long as they give a queue: a shard without one is asked meanwhile whether it has more.

        Raises:
            ShardUnreachable: a shard that has a queue for it, or of which that is unknown, is down; the others have it.
            NoPermission, ServerOutOfMemory, CommandUnavailable, PublishRefused: a shard refuses it; the others have it.
        """
        headers, channel = message["headers"], self._channel
        idle = self._idle(exchange, routing_key, headers)
        take = partial(self._take_part, message=message, exchange=exchange, routing_key=routing_key, attempt=attempt)
        routed = False
        refused: Exception | None = None
        # Those that answer have it before anybody waits for another one.
        waiting = [(number, 0.0) for number in sorted(channel.numbers, key=idle.__contains__)]
        while waiting:
            number, wait_s = waiting.pop(0)
            try:
                if not wait_s and number in idle and not channel.over(number, partial(_has_moved, check=idle[number])):
                    continue
                routed = channel.over(number, take, wait_s) or routed
            except (PublishRefused, *REFUSALS) as error:
                # As within a shard: each queue decides for itself. A retry is for what may have been stored in part.
                if not isinstance(refused, REFUSALS):
                    refused = error
            except ShardUnreachable:
                if self._ignores(exchange) or not self._may_have(number, exchange, routing_key, headers):
                    continue
                if wait_s or not channel.patience_s:
                    raise
                waiting.append((number, channel.patience_s))
        if refused is not None:
            raise refused
        return routed

    def _idle(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> dict[int, Check]:
        """Ask the shards that are known to have no queue for a message whether bindings were added; `_has_moved` reads on."""
        channel, known = self._channel, dict[int, tuple[str, ...] | None]()
        for number in channel.numbers:
            with suppress(ShardUnreachable, *REFUSALS):
                known[number] = channel.part(number).session.bindings.known_route(exchange, routing_key, headers)
        checks = {}
        for number in [number for number, queues in known.items() if queues == ()] if any(known.values()) else ():
            with suppress(ShardUnreachable, *REFUSALS):
                check = channel.over(number, partial(_ask_for_more, exchange=exchange))
                if check is not None:
                    checks[number] = check
        return checks

    def _take_part(
        self, part: PartChannel, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt
    ) -> bool:  # fmt: skip
        taken = part.publisher.take(message, exchange, routing_key, attempt, mandatory=False)
        self._channel.topology.note_table(part.number, exchange, part.session.bindings.known_table(exchange))
        return taken

    def _may_have(self, number: int, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> bool:
        """Return whether a shard that is down has a queue for a message: by the bindings that were read last, or if none were."""
        table = self._channel.topology.table(number, exchange)
        return table is None or bool(table.route(routing_key, headers))

    def _unrouted(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> None:  # fmt: skip
        """Log, count and keep a message without a recipient, on the shard of the queue of undelivered ones."""
        broadcast, fallback = self.is_fanout(exchange), self._channel.options.deadletter_queue
        if fallback and not broadcast and not mandatory:
            queue = self._channel.of_queue(fallback)
            queue.publisher.warn_of_fallback(message, exchange, routing_key)
            queue.publisher.to_fallback(message, fallback, attempt)
            return
        keeper = self._channel.of_broadcasts(UNDELIVERED)
        keeper.publisher.keep_unrouted(message, exchange, routing_key, attempt, mandatory=mandatory, broadcast=broadcast)

    # -- tracked ----------------------------------------------------------------------------------------------------------

    def _publish_tracked(self, message: dict[str, Any], exchange: str, routing_key: str, *, mandatory: bool) -> str | None:
        """Publish a message on each shard that has a queue for it: each tracks its own recipients under the same id.

        A retry goes on with the shards that have not confirmed.
        """
        channel, properties = self._channel, message["properties"]
        copies: dict[int, dict[str, Any] | None] = properties.pop(ATTEMPT, None) or self._copies(message, exchange, routing_key)
        try:
            for number, copy in copies.items():
                if copy is not None:
                    channel.over(number, partial(_publish_copy, copy=copy, about=(exchange, routing_key, mandatory)))
                    copies[number] = None
        except PublishRefused:
            raise
        except BaseException:
            properties[ATTEMPT] = copies
            raise
        return None

    def _copies(self, message: dict[str, Any], exchange: str, routing_key: str) -> dict[int, dict[str, Any] | None]:
        channel = self._channel
        if self.is_fanout(exchange):
            return {next(self._for_broadcasts(exchange), channel.of_broadcasts(exchange)).number: message}
        found: dict[int, dict[str, Any] | None] = {}
        for part in channel.all_brokers():
            if part.session.bindings.refresh(exchange).route(routing_key, message["headers"]):
                found[part.number] = {
                    **message, "headers": dict(message["headers"]), "properties": dict(message["properties"]),
                }  # fmt: skip
        return found or {channel.of_broadcasts(UNDELIVERED).number: message}


def _see_number(part: PartChannel) -> None:
    session = part.session
    session.shared.topology.check_flush(session.commands, session.keys)


def _record_of(part: PartChannel, exchange: str) -> ExchangeRecord | None:
    return part.session.bindings.known(exchange)


def _subscribers(part: PartChannel, exchange: str) -> list[str]:
    session = part.session
    return session.registry.queues(session.fanout_keys(exchange))


def _ask_for_more(part: PartChannel, exchange: str) -> Check | None:
    """Ask whether bindings were added; None where a new connection knows none."""
    bindings = part.session.bindings
    return None if bindings.known_table(exchange) is None else bindings.ask_for_changes(exchange)


def _has_moved(part: PartChannel, check: Check) -> bool:
    """Return whether bindings were added on a shard since they were read, which `check` has asked."""
    part.session.commands.read_until()
    return check.moved


def _publish_copy(part: PartChannel, copy: dict[str, Any], about: tuple[str, str, bool]) -> None:
    exchange, routing_key, mandatory = about
    part.basic_publish(copy, exchange, routing_key, mandatory)
