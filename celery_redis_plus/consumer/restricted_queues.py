"""Claims from queues of both kinds: plain ones together in one call, each one that has rules for its consumers by itself.

Rules are a pause, a single active consumer, consumer priorities, limits. Only the server knows which queues have some at the
moment: a plain claim names those that it left alone, and a claim by the rules says when there are none any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED_BYTES, MAX_QUEUES, Batch, State, batch_of
from celery_redis_plus.consumer.fetch_request import FetchResult
from celery_redis_plus.errors import AccessRefused, ResourceLocked

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import Consumer
    from celery_redis_plus.connection.command_connection import Done
    from celery_redis_plus.consumer.broker_connection import BrokerConnection
    from celery_redis_plus.consumer.fetch_request import FetchRequest
    from celery_redis_plus.stored_message import Claimed

logger = logging.getLogger(__name__)

#: Seconds after which a consumer asks again for a queue that another one has alone.
REFUSED_AGAIN_S = 5.0


class RestrictedQueues:
    """The claims of one connection. Their results say what changes for a channel; nothing of a channel is changed here."""

    def __init__(self, connection: BrokerConnection) -> None:
        """Claim with the commands of `connection`."""
        self._connection = connection
        #: Queues that had rules when they were last asked: a claim from each of them is a call of its own.
        self.names: set[str] = set()
        #: Of those the ones in which consumers have priorities.
        self._prioritized: set[str] = set()
        #: Consumer -> how often the active consumer had changed when it last claimed.
        self._epochs: dict[str, bytes] = {}
        #: Consumer -> when it last heard that it is the active one, on `clock`, in seconds.
        self._confirmed_at: dict[str, float] = {}

    def note(self, queue: str, *, restricted: bool) -> None:
        """Remember whether the queue has rules."""
        if restricted:
            self.names.add(queue)

    def claim(self, request: FetchRequest) -> FetchResult:
        """Claim what is requested. Raises as `ClaimCommands.claim` does."""
        result = FetchResult()
        if len(request.queues) <= MAX_QUEUES and self.names.isdisjoint(request.queues):
            self._claim_plain(result, request.queues, request.credit, request.unacked, share=request.share)
        else:
            self._claim_in_parts(result, request)
        if self._prioritized and len(result.messages) >= request.credit:
            self._suspend(result, request)
        return result

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
                self._claim_restricted(result, request.consumers[names[0]], share, open_credit)
            else:
                self._claim_plain(result, names, share, unacked if share > 1 else (), share=request.share)
            room -= sum(len(message.body or b"") for message in result.messages[before:])

    def _parts(self, queues: Sequence[str]) -> Iterator[Sequence[str]]:
        """Split queues, in their order, into what one call can take."""
        for restricted, group in groupby(queues, self.names.__contains__):
            names = list(group)
            size = 1 if restricted else MAX_QUEUES
            for start in range(0, len(names), size):
                yield names[start : start + size]

    def _claim_plain(
        self, result: FetchResult, queues: Sequence[str], credit: int, unacked: Sequence[int], *, share: bool
    ) -> None:  # fmt: skip
        self._add(result, self._connection.claim_commands.claim(queues, credit, share=share, held=unacked))

    def _add(self, result: FetchResult, batch: Batch) -> None:
        """Add what a claim of plain queues brought, and remember which of them have rules; they are asked again."""
        if batch.restricted:
            self.names.update(batch.restricted)
        result.messages.extend(batch.messages)
        result.more.extend(batch.more)
        result.more.extend(batch.restricted)

    # -- without waiting ---------------------------------------------------------------------------------------------------

    def send(self, request: FetchRequest, done: Done) -> Sequence[str] | None:
        """Send a claim whose reply `done` gets, for `read` with the names returned; None where one of the queues has rules.

        One call asks `MAX_QUEUES` queues at most, and for their part of the credit.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        queues, credit = request.queues, request.credit
        if self._prioritized or not self.names.isdisjoint(queues):
            return None
        names = queues[:MAX_QUEUES]
        if request.share:
            credit = ceil(credit * len(names) / len(queues))
        unacked = request.unacked[:MAX_QUEUES] if credit > 1 else ()
        return self._connection.claim_commands.post(names, credit, share=request.share, held=unacked, done=done)

    def read(self, reply: Sequence[bytes], names: Sequence[str]) -> FetchResult:
        """Return what the reply to a sent claim brought."""
        result = FetchResult()
        self._add(result, batch_of(reply, names))
        return result

    # -- by the rules ------------------------------------------------------------------------------------------------------

    def _claim_restricted(self, result: FetchResult, consumer: Consumer, count: int, credit: int) -> None:
        """Claim from the consumer's queue."""
        connection, queue = self._connection, consumer.queue
        asked_at = clock.now_s()
        known = self._epochs.get(consumer.id, b"")
        reply = connection.claim_commands.claim_restricted(queue, count, consumer.id, credit=credit, epoch=known)
        if reply.epoch != known or reply.state is State.STANDBY:
            # What it claimed as the active consumer belongs to another by now.
            self._epochs[consumer.id] = reply.epoch
            result.released.append(queue)
        if reply.state is State.OK:
            self._confirmed_at[consumer.id] = asked_at
        elif reply.state is State.PLAIN:
            self.names.discard(queue)
        elif reply.state is State.PAUSED:
            # The maintenance task logs it.
            connection.service.consumer_heartbeats.run_soon()
            connection.service.wake()
        elif reply.state is State.UNKNOWN:
            try:
                connection.consumers.join(consumer)
            except (AccessRefused, ResourceLocked) as error:
                logger.warning("consumer %s gets nothing: %s", consumer.tag, error)
                result.recheck_at[queue] = asked_at + REFUSED_AGAIN_S
                return
        elif reply.state is State.LOCKED:
            logger.warning(
                "consumer %s ends: queue %r was declared again, and belongs to another connection", consumer.tag, queue
            )
            result.ended.append(queue)
            return
        (self._prioritized.add if reply.has_priorities else self._prioritized.discard)(queue)
        if reply.wait_s is not None and not reply.more:
            result.recheck_at[queue] = clock.now_s() + reply.wait_s
        result.messages.extend(reply.messages)
        if reply.more:
            result.more.append(queue)

    def _suspend(self, result: FetchResult, request: FetchRequest) -> None:
        """Tell the queues with consumer priorities that the channel's credit is gone: by what came from others, perhaps."""
        for queue in self._prioritized.intersection(request.consumers).difference(result.more, result.ended):
            self._connection.consumers.suspend(request.consumers[queue])
            # The claim that comes when there is credit again says so.
            result.more.append(queue)

    def check_active(self, consumer: Consumer) -> FetchResult | None:
        """Ask whether a consumer may deliver what it has claimed; None where that is known.

        A single active consumer asks once more when it has not heard for long that it is the one: while it was frozen, another
        may have taken its place, and begun with the same messages.
        """
        if consumer.queue not in self.names:
            return None
        declared = self._connection.queues.arguments(consumer.queue)
        if declared is None or not declared.single_active:
            return None
        heard_at = self._confirmed_at.get(consumer.id, 0.0)
        if clock.now_s() - heard_at < self._connection.options.consumer_heartbeat_timeout / 2:
            return None
        result = FetchResult()
        self._claim_restricted(result, consumer, 0, 1)
        return result

    def get(self, queue: str) -> list[Claimed]:
        """Return the first message of a queue, if there is one and no consumer has the queue alone.

        Raises:
            ResourceLocked: the queue has a single active consumer, or belongs to another connection.
            AccessRefused: it has an exclusive consumer.
        """
        commands = self._connection.claim_commands
        batch = commands.claim([queue], 1, share=False)
        if not batch.restricted:
            return batch.messages
        reply = commands.claim_restricted(queue, 1, "", credit=1, epoch=b"")
        if reply.state is State.LOCKED:
            raise ResourceLocked(f"queue {queue!r} belongs to another connection, which declared it with exclusive=True")
        if reply.state is State.STANDBY:
            declared = self._connection.queues.arguments(queue)
            if declared is not None and declared.single_active:
                raise ResourceLocked(f"queue {queue!r} has a single active consumer: consume it instead of getting one message")
            raise AccessRefused(f"queue {queue!r} has an exclusive consumer")
        return reply.messages
