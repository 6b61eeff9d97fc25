"""Claims for channels from queues of both kinds: plain ones together in one call, each one that has rules by itself.

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
from celery_redis_plus.broker.consumers.claims import MAX_BATCH_BYTES, MAX_QUEUES, Batch, State, batch_of
from celery_redis_plus.errors import AccessRefused, ResourceLocked

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import Done
    from celery_redis_plus.stored_message import Claimed
    from celery_redis_plus.transport.broker_connection import BrokerConnection
    from celery_redis_plus.transport.consuming import Consuming

logger = logging.getLogger(__name__)

#: Seconds after which a consumer asks again for a queue that another one has alone.
REFUSED_AGAIN_S = 5.0


class RestrictedQueues:
    """A session's claims."""

    def __init__(self, session: BrokerConnection) -> None:
        """Claim with the claimer of `session`."""
        self._session = session
        #: Queues that had rules when they were last asked.
        self._managed: set[str] = set()
        #: Of those the ones in which consumers have priorities.
        self._ranked: set[str] = set()
        #: Consumer -> how often the active consumer had changed when it last claimed.
        self._epochs: dict[str, bytes] = {}
        #: Consumer -> when it last heard that it is the active one, on `clock`, in seconds.
        self._confirmed_at: dict[str, float] = {}

    def note(self, queue: str, *, managed: bool) -> None:
        """Remember whether the queue has rules."""
        if managed:
            self._managed.add(queue)

    def claim(self, channel: Consuming, queues: Sequence[str], credit: int) -> Batch:
        """Claim up to `credit` messages of `queues`, in their order. Raises as `ClaimCommands.claim` does."""
        if len(queues) <= MAX_QUEUES and self._managed.isdisjoint(queues):
            batch = self._plain(channel, queues, credit)
        else:
            batch = self._in_parts(channel, queues, credit)
        if self._ranked and len(batch.messages) >= credit:
            self._suspend(channel, batch)
        return batch

    def _in_parts(self, channel: Consuming, queues: Sequence[str], credit: int) -> Batch:
        """Claim with several calls, among which the credit is split as one call splits it among its queues."""
        batch = Batch([], [])
        left, room = len(queues), MAX_BATCH_BYTES
        for names in self._parts(queues):
            open_credit = credit - len(batch.messages)
            if open_credit <= 0 or room <= 0:
                # Not looked at: they keep their reason to be.
                batch.more.extend(name for name in names if name in channel.hot)
                continue
            share = ceil(open_credit * len(names) / left) if channel.turns.share else open_credit
            left -= len(names)
            if names[0] in self._managed:
                found, more = self._by_the_rules(channel, names[0], share, open_credit)
            else:
                part = self._plain(channel, names, share)
                found, more = part.messages, part.more
            batch.messages.extend(found)
            batch.more.extend(more)
            room -= sum(len(message.body or b"") for message in found)
        return batch

    def _parts(self, queues: Sequence[str]) -> Iterator[Sequence[str]]:
        """Split queues, in their order, into what one call can take."""
        for managed, group in groupby(queues, self._managed.__contains__):
            names = list(group)
            size = 1 if managed else MAX_QUEUES
            for start in range(0, len(names), size):
                yield names[start : start + size]

    @property
    def has_rules(self) -> bool:
        """Whether a queue is known that has rules: each of these takes a call of its own."""
        return bool(self._managed)

    def post(self, channel: Consuming, queues: Sequence[str], credit: int, done: Done) -> Sequence[str] | None:
        """Send a claim whose reply `done` gets, for `batch_of` with the names returned; None where one of the queues has rules.

        One call asks `MAX_QUEUES` queues at most, and for their part of the credit.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        if self._ranked or not self._managed.isdisjoint(queues):
            return None
        names, share = queues[:MAX_QUEUES], channel.turns.share
        if share:
            credit = ceil(credit * len(names) / len(queues))
        held = channel.held(names) if credit > 1 else ()
        return self._session.claimer.post(names, credit, share=share, held=held, done=done)

    def batch_of(self, reply: Sequence[bytes], names: Sequence[str]) -> Batch:
        """Return what the reply to a posted claim brought."""
        return self._noted(batch_of(reply, names))

    def _plain(self, channel: Consuming, queues: Sequence[str], credit: int) -> Batch:
        held = channel.held(queues) if credit > 1 else ()
        return self._noted(self._session.claimer.claim(queues, credit, share=channel.turns.share, held=held))

    def _noted(self, batch: Batch) -> Batch:
        """Remember which of the queues have rules, as a claim of plain ones has found out; they are looked at again."""
        if batch.managed:
            self._managed.update(batch.managed)
            batch.more.extend(batch.managed)
        return batch

    def _by_the_rules(self, channel: Consuming, queue: str, count: int, credit: int) -> tuple[list[Claimed], list[str]]:
        """Claim from one queue; return the messages, and the queue's name where it has to be looked at again."""
        consumer = channel.consumers[queue]
        asked_at = clock.now_s()
        known = self._epochs.get(consumer.id, b"")
        reply = self._session.claimer.claim_restricted(queue, count, consumer.id, credit=credit, epoch=known)
        if reply.epoch != known or reply.state is State.STANDBY:
            # What it claimed as the active consumer belongs to another by now.
            self._epochs[consumer.id] = reply.epoch
            channel.forfeit(queue)
        if reply.state is State.OK:
            self._confirmed_at[consumer.id] = asked_at
        elif reply.state is State.PLAIN:
            self._managed.discard(queue)
        elif reply.state is State.PAUSED:
            # The duties log it.
            self._session.service.consumer_heartbeats.run_soon()
            self._session.service.wake()
        elif reply.state is State.UNKNOWN:
            try:
                self._session.consumers.join(consumer)
            except (AccessRefused, ResourceLocked) as error:
                logger.warning("consumer %s gets nothing: %s", consumer.tag, error)
                channel.later[queue] = asked_at + REFUSED_AGAIN_S
                return [], []
        elif reply.state is State.LOCKED:
            logger.warning(
                "consumer %s ends: queue %r was declared again, and belongs to another connection", consumer.tag, queue
            )
            channel.lose(queue)
            return [], []
        (self._ranked.add if reply.ranked else self._ranked.discard)(queue)
        if reply.wait_s is not None and not reply.more:
            channel.later[queue] = clock.now_s() + reply.wait_s
        return reply.messages, [queue] if reply.more else []

    def _suspend(self, channel: Consuming, batch: Batch) -> None:
        """Tell the queues with consumer priorities that the channel's credit is gone: by what came from others, perhaps."""
        for queue in self._ranked.intersection(channel.consumers).difference(batch.more):
            self._session.consumers.suspend(channel.consumers[queue])
            # The claim that comes when there is credit again says so.
            batch.more.append(queue)

    def may_deliver(self, channel: Consuming, queue: str) -> bool:
        """Return whether the channel may deliver what it has claimed from `queue`; if not, that has been handed back.

        A single active consumer asks once more when it has not heard for long that it is the one: while it was frozen, another
        may have taken its place, and begun with the same messages.
        """
        if queue not in self._managed:
            return True
        declared = self._session.queues.arguments(queue)
        if declared is None or not declared.single_active:
            return True
        heard_at = self._confirmed_at.get(channel.consumers[queue].id, 0.0)
        if clock.now_s() - heard_at < self._session.options.consumer_heartbeat_timeout / 2:
            return True
        before = len(channel.buffer)
        _, more = self._by_the_rules(channel, queue, 0, 1)
        channel.hot.update(dict.fromkeys(more))
        return len(channel.buffer) == before

    def get(self, queue: str) -> list[Claimed]:
        """Return the first message of a queue, if there is one and nobody has the queue alone.

        Raises:
            ResourceLocked: the queue has a single active consumer, or belongs to another connection.
            AccessRefused: it has an exclusive consumer.
        """
        claimer = self._session.claimer
        batch = claimer.claim([queue], 1, share=False)
        if not batch.managed:
            return batch.messages
        reply = claimer.claim_restricted(queue, 1, "", credit=1, epoch=b"")
        if reply.state is State.LOCKED:
            raise ResourceLocked(f"queue {queue!r} belongs to another connection, which declared it with exclusive=True")
        if reply.state is State.STANDBY:
            declared = self._session.queues.arguments(queue)
            if declared is not None and declared.single_active:
                raise ResourceLocked(f"queue {queue!r} has a single active consumer: consume it instead of getting one message")
            raise AccessRefused(f"queue {queue!r} has an exclusive consumer")
        return reply.messages
