"""A consumer that looks at the messages of a queue and takes none (consumer argument `x-browse`)."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_redis_plus import clock
from celery_redis_plus.broker.queues.listing import LISTING_PAGE, read_copies, waiting_page
from celery_redis_plus.stored_message import UnreadableMessageError

if TYPE_CHECKING:
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.delivery_turns import Payload
    from celery_redis_plus.stored_message import Claimed

logger = logging.getLogger(__name__)

#: Ids that one command reads, to find those of new messages.
TAGS_A_READ = 1000
#: Seconds between two passes over the queue; and how much longer than the pass itself, so that a long queue costs little.
PAUSE_S, PAUSE_SHARE = 1.0, 20
#: Seconds for which a turn reads ids at most, beside the last read: others have their turn while a long queue is read.
SLICE_S = 0.005
#: What the delivery tag of a copy begins with: no settlement of it reaches the message.
COPY = "browsed/"


class QueueBrowser:
    """Delivers a copy of each ready message of a queue, once, in the queue's order; then of those that become ready, in passes.

    It remembers the ids of the ready messages: some 100 bytes each.
    """

    def __init__(
        self,
        session: ConsumerSession,
        queue: str,
        deliver: Callable[[Payload], Any],
        *,
        decode: Callable[[Claimed], Payload],
        may_deliver: Callable[[], bool],
    ) -> None:
        """Begin with the first ready message.

        Args:
            session: of the connection, as far as it consumes.
            queue: its name.
            deliver: gets the payload of each copy.
            decode: makes a payload of a message; raises UnreadableMessageError where it cannot.
            may_deliver: tells whether the channel's consumers are not suspended.
        """
        self._session = session
        self._queue = queue
        self._deliver = deliver
        self._decode = decode
        self.may_deliver = may_deliver
        self._buffer: deque[Claimed] = deque()
        #: The rank where this pass goes on.
        self._rank = 0
        #: Ids that this pass and the one before have met. A message that changed its rank meanwhile may be missed by one pass.
        self._met: set[str] = set()
        self._met_before: set[str] = set()
        #: When to read again, on `clock`, in seconds.
        self.next_read_at = 0.0
        #: Seconds that this pass has read for.
        self._spent_s = 0.0

    def deliver_one(self) -> bool:
        """Deliver a copy if there is one, or read for a slice of the pass; return whether a copy was delivered.

        Raises as `CommandConnection.call` does.
        """
        if not self._buffer and not self._read_slice():
            return False
        copy = self._buffer.popleft()
        try:
            if copy.body is None:
                copy = replace(copy, body=self._session.claim_commands.fetch_body(copy))
            payload = None if copy.body is None else self._decode(copy)
        except UnreadableMessageError:
            self._session.service.unreadable += 1
            logger.exception(
                "message %s of queue %r cannot be read; its browser passes over it", copy.tag, copy.queue,
                extra={"tag": copy.tag, "queue": copy.queue},
            )  # fmt: skip
            payload = None
        if payload is not None:
            payload["properties"]["delivery_tag"] = COPY + copy.tag
            self._deliver(payload)
        return True

    def _read_slice(self) -> bool:
        """Read until there is a new message, for `SLICE_S`; return whether there is one. `next_read_at` tells when to go on."""
        began = time.monotonic()
        while not self._buffer and self.next_read_at <= clock.now_s():
            before = time.monotonic()
            if before - began > SLICE_S:
                return False
            ended = self._read()
            self._spent_s += time.monotonic() - before
            if ended:
                self._end_pass()
        return bool(self._buffer)

    def _read(self) -> bool:
        """Read the next messages that are new, or go on with the pass; return whether that has ended."""
        commands, keys = self._session.commands, self._session.keys
        tags = waiting_page(commands, keys, self._queue, self._rank, TAGS_A_READ)
        fresh = next((at for at, tag in enumerate(tags) if not self._knows(tag)), None)
        if fresh is None:
            self._met.update(tags)
            self._rank += len(tags)
            return len(tags) < TAGS_A_READ
        self._met.update(tags[:fresh])
        first = self._rank + fresh
        checked, copies = read_copies(commands, keys, self._queue, first, LISTING_PAGE)
        self._rank = first + checked
        self._buffer.extend(copy for copy in copies if not self._knows(copy.tag))
        self._met.update(copy.tag for copy in copies)
        return False

    def _knows(self, tag: str) -> bool:
        return tag in self._met or tag in self._met_before

    def _end_pass(self) -> None:
        self.next_read_at = clock.now_s() + max(PAUSE_S, PAUSE_SHARE * self._spent_s)
        self._met, self._met_before, self._rank, self._spent_s = set(), self._met, 0, 0.0
