"""What a connection has read for one subscriber and not delivered.

It is contiguous: the numbers of the entries tell when the server has dropped some that the subscriber had not read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from celery_redis_plus.broker.exchanges.topics import matches_topic
from celery_redis_plus.broker.fanout.entries import Entry, Mark, is_ours, number_of, parse_id, publication_of, routing_key_of
from celery_redis_plus.signals import Missed, notify

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor

logger = logging.getLogger(__name__)

#: One broadcast for one subscriber: who reads for it, the entry, where it was before (None where it settles nothing), and whether
#: the entry may have been delivered before.
Delivery: TypeAlias = "tuple[Subscription, Entry, Mark | None, bool]"
#: Entries in a subscriber's buffer at which reading for it stops.
MAX_BUFFERED = 500
#: The same in bytes of payload.
MAX_BUFFERED_BYTES = 4_000_000
#: Entries in its buffer at which reading for it starts again, even if a read for others is pending.
REFILL_BELOW = 50


class Subscription:
    """What a connection reads for one subscriber."""

    def __init__(self, position: SubscriberCursor, consumer: Any, may: Callable[[], bool] | None) -> None:
        """Read on from `position`.

        Args:
            position: what the subscriber has processed.
            consumer: whom the poller hands the deliveries to.
            may: whether one more may be delivered; None: always, for nothing is settled.
        """
        self.position = position
        self.consumer = consumer
        self.may = may
        self.patterns: set[str] = set()
        self.buffer: deque[Entry] = deque()
        #: Bytes of the payloads in it.
        self.buffered_bytes = 0
        #: By publisher, the numbers of its broadcasts in the buffer; None: they were not asked for since the last read.
        self._numbers: dict[bytes, deque[int]] | None = None
        #: Up to where it was read.
        self.fetched = position.reached
        #: Whether there may be more behind that: the last read was full, or left it out.
        self.more = False

    @property
    def full(self) -> bool:
        """Whether nothing more is to be read for it."""
        return len(self.buffer) >= MAX_BUFFERED or self.buffered_bytes >= MAX_BUFFERED_BYTES

    @property
    def low(self) -> bool:
        """Whether it wants more, though a read for others is out."""
        return len(self.buffer) <= REFILL_BELOW and self.buffered_bytes < MAX_BUFFERED_BYTES

    @property
    def head(self) -> Entry:
        """The entry that it delivers next; there is one."""
        again = self.position.to_redeliver
        return again[0].entry if again else self.buffer[0]

    @property
    def first_ms(self) -> int:
        """The server's time, in ms, of the entry that it delivers next."""
        return parse_id(self.head[0])[0]

    def goes_before(self, other: Subscription) -> bool:
        """Tell whether it holds a broadcast that the publisher of the head of `other` has sent before that one.

        The ids of two streams do not tell: several broadcasts have one millisecond, and the server's clock may go back.
        """
        publisher, number = publication_of(other.head)
        earliest = self._earliest_of(publisher)
        return earliest is not None and earliest < number

    def _earliest_of(self, publisher: bytes) -> int | None:
        again = self.position.to_redeliver
        if again:
            publications = (publication_of(unacked.entry) for unacked in again)
            return min((number for sender, number in publications if sender == publisher), default=None)
        if self._numbers is None:
            self._numbers = {}
            for sender, number in map(publication_of, self.buffer):
                self._numbers.setdefault(sender, deque()).append(number)
        numbers = self._numbers.get(publisher)
        return numbers[0] if numbers else None

    @property
    def takes_all(self) -> bool:
        """Whether no pattern filters; a binding without a key takes everything, as AMQP's fanout does."""
        return "" in self.patterns or "#" in self.patterns

    def fill(self, entries: list[Entry], *, filtered: bool) -> None:
        """Take the entries of a read that began where this subscriber was, or before."""
        if parse_id(entries[0][0]) <= self.fetched.id:
            entries = [entry for entry in entries if parse_id(entry[0]) > self.fetched.id]
            if not entries:
                return
        if not self._follows(entries):
            entries = list(self._checked(entries))
        else:
            self.fetched = Mark(entries[-1][0], self.fetched.number + len(entries))
        if filtered and not self.takes_all:
            entries = [entry for entry in entries if self._wants(routing_key_of(entry))]
        self.buffer.extend(entries)
        self._numbers = None
        self.buffered_bytes += sum(_size(entry) for entry in entries)
        if not self.buffer:
            self.position.seek(self.fetched)
            if self.position.report_every:
                self.position.report_progress()

    def _follows(self, entries: list[Entry]) -> bool:
        """Return whether nothing is missing and nothing foreign among the entries. Their numbers rise, so the ends tell."""
        first, last = entries[0], entries[-1]
        if not (is_ours(first) and is_ours(last)):
            return False
        number = number_of(first)
        return number == self.fetched.number + 1 and number_of(last) - number == len(entries) - 1

    def _checked(self, entries: list[Entry]) -> Iterator[Entry]:
        """Yield the entries that are broadcasts, and report what is missing between them."""
        for entry in entries:
            if not is_ours(entry):
                logger.warning("entry %r of stream %r is no broadcast of ours; passed over", entry[0], self.position.stream)
                self.fetched = Mark(entry[0], self.fetched.number)
                continue
            number, expected = number_of(entry), self.fetched.number + 1
            if number != expected:
                self.report(number - expected if number > expected else None, entry[0])
            self.fetched = Mark(entry[0], number)
            yield entry

    def report(self, count: int | None, until: bytes) -> None:
        """Tell that entries are missing after what was fetched."""
        exchange, after = self.position.keys.exchange, self.fetched.entry
        if count is None:
            logger.warning(
                "queue %r: the stream of exchange %r began anew after entry %s: what it held and this queue had not read is "
                "lost, in an unknown number",
                self.position.queue, exchange, after.decode(), extra={"queue": self.position.queue, "exchange": exchange},
            )  # fmt: skip
        else:
            logger.warning(
                "queue %r missed %d broadcast(s) of exchange %r, numbers %d to %d, between entries %s and %s: the stream keeps "
                "no more (stream_maxlen, stream_max_age, limits of the exchange)",
                self.position.queue, count, exchange,
                self.fetched.number + 1, self.fetched.number + count, after.decode(), until.decode(),
                extra={"queue": self.position.queue, "exchange": exchange},
            )  # fmt: skip
        self.position.missed += count or 0
        notify(Missed(self.position.queue, exchange, count, after.decode(), until.decode()))

    def _wants(self, routing_key: str) -> bool:
        """Return whether it gets a broadcast; one without a key reaches every binding, as AMQP's fanout does.

        The route of Celery's manual (Routing Tasks, "Broadcast") sends it so, and binds with `task_default_routing_key`.
        """
        return not routing_key or any(matches_topic(pattern, routing_key) for pattern in self.patterns)

    def rewind(self, mark: Mark) -> None:
        """Go on reading at `mark`: the stream has begun anew."""
        self.report(None, b"")
        self.buffer.clear()
        self._numbers = None
        self.buffered_bytes = 0
        self.fetched = mark
        self.position.seek(mark)

    def take(self) -> Delivery:
        """Take the next delivery, what comes again first."""
        position, buffer = self.position, self.buffer
        if position.to_redeliver:
            opened = position.take_again()
            if opened is not None:
                return self, opened.entry, opened.before, True
        entry = buffer.popleft()
        if self._numbers is not None:
            self._numbers[publication_of(entry)[0]].popleft()
        size = _size(entry)
        self.buffered_bytes -= size
        position.delivered += 1
        position.delivered_bytes += size
        before = None
        if self.may is None:
            position.acked += 1
        else:
            before = position.reached
        redelivered = position.redeliver_up_to is not None and parse_id(entry[0]) <= position.redeliver_up_to
        if buffer:
            position.pass_to(entry)
        else:
            # What its patterns passed over behind this one is processed as well.
            position.seek(self.fetched)
        if before is None and position.report_every:
            position.report_progress()
        return self, entry, before, redelivered


def _size(entry: Entry) -> int:
    """Return the bytes of an entry's payload."""
    return sum(map(len, entry[1]))
