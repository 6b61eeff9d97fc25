"""Claims from queues that have rules for their consumers, or from more queues than one call asks.

Rules are a pause, a single active consumer, consumer priorities, limits. Each queue with rules is asked by itself. Only the
server knows which queues have some at the moment: a plain claim names those that it left alone, and a claim by the rules says
when there are none any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED_BYTES, MAX_QUEUES, Batch, Look, State
from celery_redis_plus.errors import AccessRefused, ResourceLocked

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.claims import ClaimCommands
    from celery_redis_plus.broker.consumers.registry import Consumer, Consumers
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.stored_message import Claimed

logger = logging.getLogger(__name__)

#: Seconds after which a consumer asks again for a queue that another one has alone.
REFUSED_AGAIN_S = 5.0
#: Seconds after which a queue is asked again that cannot be claimed from.
FAILED_AGAIN_S = 5.0
#: States that end a consumer -> why, for the log.
ENDS = {
    State.LOCKED: "and belongs to another connection",
    State.UNFILTERED: "without 'x-filtered', and the consumer has an 'x-filter'",
}


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request for messages of one channel's queues."""

    #: In the order in which they are looked at.
    queues: Sequence[str]
    #: The most messages to claim.
    credit: int
    #: Whether the credit is split among the queues.
    share: bool
    #: How many unacked messages the channel has of each queue, in the order of `queues`; empty: not counted.
    unacked: Sequence[int]
    #: The queues that there is a reason to claim from.
    candidates: Collection[str]
    #: Queue -> its consumer, as the server knows it.
    consumers: Mapping[str, Consumer]


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a fetch brought, and what it learned of the queues."""

    messages: list[Claimed] = field(default_factory=list)
    #: Queues that have more, or that have to be asked again.
    more: list[str] = field(default_factory=list)
    #: Queue -> when to ask again, on `clock`, in seconds: no wake-up comes before.
    recheck_at: dict[str, float] = field(default_factory=dict)
    #: Queues of which another consumer is the active one: what is claimed and not delivered goes back.
    released: list[str] = field(default_factory=list)
    #: Queues whose consumer here is over: they belong to another connection, or are not filtered any more.
    ended: list[str] = field(default_factory=list)


class RestrictedQueues:
    """The rules of one connection's queues, as far as they are known. Nothing of a channel is changed here."""

    def __init__(
        self,
        claim_commands: ClaimCommands,
        consumers: Consumers,
        queues: Queues,
        *,
        on_paused: Callable[[], None],
        on_standby: Callable[[], None],
        consumer_timeout_s: float,
    ) -> None:
        """Know of no rules yet.

        Args:
            claim_commands: claims.
            consumers: the lists of consumers on the server.
            queues: tells how a queue was declared.
            on_paused: called when a queue is found to be paused.
            on_standby: called when one message was asked for, and a consumer has the queue alone: it may have died.
            consumer_timeout_s: `consumer_heartbeat_timeout`, in seconds.
        """
        self._claim_commands = claim_commands
        self._consumers = consumers
        self._queues = queues
        self._on_paused = on_paused
        self._on_standby = on_standby
        self._consumer_timeout_s = consumer_timeout_s
        #: Queues that had rules when they were last asked: a claim from each of them is a call of its own.
        self.names: set[str] = set()
        #: Of those the ones in which consumers have priorities.
        self._prioritized: set[str] = set()
        #: Consumer -> how often the active consumer had changed when it last claimed.
        self._activations: dict[str, bytes] = {}
        #: Queues that a consumer with a filter was begun for: only a claim by the rules applies it, so they stay in `names`.
        self._filtered: set[str] = set()
        #: Consumer -> how it looks through its filtered queue.
        self._looks: dict[str, Look] = {}
        #: Consumer -> when it last heard that it is the active one, on `clock`, in seconds.
        self._confirmed_at: dict[str, float] = {}

    def note(self, queue: str, *, restricted: bool) -> None:
        """Remember whether the queue has rules."""
        if restricted:
            self.names.add(queue)

    def forget(self, consumer: Consumer, *, last: bool) -> None:
        """Forget a consumer that has ended; with the `last` one of its queue here what is known of the queue."""
        for by_consumer in (self._activations, self._looks, self._confirmed_at):
            by_consumer.pop(consumer.id, None)
        if last:
            for queues in (self.names, self._prioritized, self._filtered):
                queues.discard(consumer.queue)

    def concern(self, queues: Sequence[str]) -> bool:
        """Return whether a claim of `queues` has to follow rules: of one of them, or for what it takes from the credit."""
        return bool(self._prioritized) or not self.names.isdisjoint(queues)

    def learn(self, batch: Batch) -> FetchResult:
        """Return what a plain claim brought, and remember which of its queues have rules; they are asked again."""
        self.names.update(batch.restricted)
        result = FetchResult(batch.messages, [*batch.more, *batch.restricted])
        if batch.failures:
            result.recheck_at.update(dict.fromkeys(batch.failures, clock.now_s() + FAILED_AGAIN_S))
        return result

    def claim(self, request: FetchRequest, result: FetchResult) -> None:
        """Claim what is requested, with several calls if need be, into `result`: it has what came before an error, too.

        A signal handler may cancel consumers amid it. Raises as `ClaimCommands.claim` does.
        """
        self._claim_in_parts(result, request)
        if self._prioritized and len(result.messages) >= request.credit:
            self._suspend(result, request)

    def _claim_in_parts(self, result: FetchResult, request: FetchRequest) -> None:
        """Claim with several calls, among which the credit is split as one call splits it among its queues."""
        left, room, at = len(request.queues), MAX_CLAIMED_BYTES, 0
        for names in self._parts(request.queues):
            unacked = request.unacked[at : at + len(names)]
            at += len(names)
            open_credit = request.credit - len(result.messages)
            if open_credit <= 0 or room <= 0:
                # Not looked at: they keep their reason to be.
                result.more.extend(name for name in names if name in request.candidates)
                continue
            share = ceil(open_credit * len(names) / left) if request.share else open_credit
            left -= len(names)
            before = len(result.messages)
            if names[0] in self.names:
                consumer = request.consumers.get(names[0])
                if consumer is not None:
                    self._claim_restricted(result, consumer, share, open_credit)
            else:
                unacked = unacked if share > 1 else ()
                found = self.learn(self._claim_commands.claim(names, share, share=request.share, held=unacked))
                result.messages.extend(found.messages)
                result.more.extend(found.more)
                result.recheck_at.update(found.recheck_at)
            room -= sum(len(message.body or b"") for message in result.messages[before:])

    def _parts(self, queues: Sequence[str]) -> Iterator[Sequence[str]]:
        """Split queues, in their order, into what one call can take."""
        for restricted, group in groupby(queues, self.names.__contains__):
            names = list(group)
            size = 1 if restricted else MAX_QUEUES
            for start in range(0, len(names), size):
                yield names[start : start + size]

    # -- by the rules ------------------------------------------------------------------------------------------------------

    def _claim_restricted(self, result: FetchResult, consumer: Consumer, count: int, credit: int) -> None:
        """Claim from the consumer's queue; where what its keys hold makes that impossible, it alone is asked again later."""
        try:
            self._claim_by_rules(result, consumer, count, credit)
        except ResponseError as error:
            self._claim_commands.failures.contain(error, consumer.queue)
            result.recheck_at[consumer.queue] = clock.now_s() + FAILED_AGAIN_S

    def _claim_by_rules(self, result: FetchResult, consumer: Consumer, count: int, credit: int) -> None:
        queue, asked_at = consumer.queue, clock.now_s()
        known = self._activations.get(consumer.id, b"")
        look = self._looks.get(consumer.id)
        reply = self._claim_commands.claim_restricted(queue, count, consumer.id, credit=credit, activations=known, look=look)
        if reply.activations != known or reply.state is State.STANDBY:
            # What it claimed as the active consumer belongs to another by now.
            self._activations[consumer.id] = reply.activations
            result.released.append(queue)
        if reply.state is State.OK:
            self._confirmed_at[consumer.id] = asked_at
        elif reply.state is State.PLAIN and queue not in self._filtered:
            self.names.discard(queue)
        elif reply.state is State.PAUSED:
            self._on_paused()
        elif reply.state is State.UNKNOWN:
            try:
                self._consumers.join(consumer)
            except (AccessRefused, ResourceLocked) as error:
                logger.warning("consumer %s gets nothing: %s", consumer.tag, error, extra={"queue": queue})
                result.recheck_at[queue] = asked_at + REFUSED_AGAIN_S
                return
        elif reply.state in ENDS:
            why = ENDS[reply.state]
            logger.warning(
                "consumer %s ends: queue %r was declared again, %s", consumer.tag, queue, why, extra={"queue": queue}
            )  # fmt: skip
            result.ended.append(queue)
            return
        (self._prioritized.add if reply.has_priorities else self._prioritized.discard)(queue)
        if reply.wait_s is not None and not reply.more:
            result.recheck_at[queue] = clock.now_s() + reply.wait_s
        result.messages.extend(reply.messages)
        again = look is not None and reply.state is State.OK and self._looks_again(look, reply.cursor)
        if reply.more or again:
            result.more.append(queue)

    def look_through(self, consumer: Consumer) -> None:
        """Note that the queue of `consumer` is filtered, or was when the consumer began."""
        if consumer.filter:
            self.names.add(consumer.queue)
            self._filtered.add(consumer.queue)
        self._looks.setdefault(consumer.id, Look(consumer.filter))

    def note_ready(self, consumer: Consumer, *, pass_on: bool) -> None:
        """Note that something has become ready in a filtered queue; `pass_on`: its other consumers do not know."""
        look = self._looks.get(consumer.id)
        if look is not None:
            look.pass_on = look.pass_on or pass_on
            look.again = look.again or bool(look.cursor)

    @staticmethod
    def _looks_again(look: Look, cursor: bytes) -> bool:
        """Note where a look has ended; return whether another one has to follow, because something may have come behind it."""
        look.pass_on, look.cursor = False, cursor
        again, look.again = look.again and not cursor, look.again and bool(cursor)
        return again

    def _suspend(self, result: FetchResult, request: FetchRequest) -> None:
        """Tell the queues with consumer priorities that the channel's credit is gone: by what came from others, perhaps."""
        consumers = dict(request.consumers)
        for queue in self._prioritized.intersection(consumers).difference(result.more, result.ended):
            self._consumers.suspend(consumers[queue])
            # The claim that comes when there is credit again says so.
            result.more.append(queue)

    def suspend_all(self, consumers: Mapping[str, Consumer], candidates: Collection[str]) -> list[str]:
        """Tell the queues with consumer priorities, but for `candidates`, that another server took the credit; return them."""
        found = {queue: consumers[queue] for queue in self._prioritized.intersection(consumers).difference(candidates)}
        for consumer in found.values():
            self._consumers.suspend(consumer)
        return list(found)

    def check_active(self, consumer: Consumer) -> FetchResult | None:
        """Ask whether a consumer may deliver what it has claimed; None where that is known.

        A single active consumer asks once more when it has not heard for long that it is the one: while it was frozen, another
        may have taken its place, and begun with the same messages.
        """
        if consumer.queue not in self.names:
            return None
        declared = self._queues.arguments(consumer.queue)
        if declared is None or not declared.single_active:
            return None
        heard_at = self._confirmed_at.get(consumer.id, 0.0)
        if clock.now_s() - heard_at < self._consumer_timeout_s / 2:
            return None
        result = FetchResult()
        self._claim_restricted(result, consumer, 0, 1)
        return result

    def get(self, queue: str) -> list[Claimed]:
        """Return the first message of a queue, if there is one and no consumer has the queue alone.

        Raises:
            ResourceLocked: the queue has a single active consumer, or belongs to another connection.
            AccessRefused: it has an exclusive consumer.
            redis.exceptions.ResponseError: what its keys hold makes it impossible.
        """
        commands = self._claim_commands
        batch = commands.claim([queue], 1, share=False)
        while batch.more and not batch.messages:
            # All that the call came to had expired.
            batch = commands.claim([queue], 1, share=False)
        if queue in batch.failures and not batch.messages:
            raise commands.error_of(queue, batch.failures[queue])
        if not batch.restricted:
            return batch.messages
        reply = commands.claim_restricted(queue, 1, "", credit=1, activations=b"")
        while reply.state is State.AGAIN:
            reply = commands.claim_restricted(queue, 1, "", credit=1, activations=b"")
        if reply.state is State.LOCKED:
            raise ResourceLocked(f"queue {queue!r} belongs to another connection, which declared it with exclusive=True")
        if reply.state is State.STANDBY:
            self._on_standby()
            declared = self._queues.arguments(queue)
            if declared is not None and declared.single_active:
                raise ResourceLocked(f"queue {queue!r} has a single active consumer: consume it instead of getting one message")
            raise AccessRefused(f"queue {queue!r} has an exclusive consumer")
        return reply.messages
