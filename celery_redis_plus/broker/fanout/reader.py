"""The blocked read of one connection over all streams that its queues are bound to.

Every stream is read once for all subscribers of the connection, and every subscriber has a buffer of its own: one that takes
nothing stops being read for, and the others go on. What a subscriber has in its buffer is contiguous: the numbers of the entries
tell when the server has dropped some that it had not read.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from celery_redis_plus.broker.exchanges.topics import matches_topic
from celery_redis_plus.broker.fanout.entries import Entry, Mark, is_ours, number_of, parse_id, routing_key_of
from celery_redis_plus.errors import ServerTimeout
from celery_redis_plus.signals import Missed, notify

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor
    from celery_redis_plus.connection.blocking_connection import BlockingConnection

logger = logging.getLogger(__name__)

#: One broadcast for one subscriber: who reads for it, the entry, where it was before (None where it settles nothing), and whether
#: the entry may have been delivered before.
Delivery: TypeAlias = "tuple[Subscription, Entry, Mark | None, bool]"
#: Most entries of one stream in one read when all are small; and most bytes when some are large.
STREAM_PAGE, STREAM_PAGE_BYTES = 500, 2_000_000
#: Entries that a read asks for when the lengths of the streams are unknown. Usually it blocks and returns one.
BLIND_PAGE = 4
#: Entries in a subscriber's buffer at which reading for it stops.
MAX_BUFFERED = 500
#: The same in bytes of payload.
MAX_BUFFERED_BYTES = 4_000_000
#: Entries in its buffer at which reading for it starts again, even if a read for others is pending.
REFILL_BELOW = 50
#: A read that brings something within so many seconds, or several entries, is one of a burst. The next one waits, so that it
#: brings more at once: first for a moment, then twice as long each time, because a read costs as much as 20 entries, and on a
#: busy machine more: 50 subscribers that wake for every single broadcast leave no time to its publisher.
BURST_S, FIRST_REST_S, LONGEST_REST_S = 0.002, 0.004, 0.050


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
        #: Up to where it was read.
        self.fetched = position.reached

    @property
    def full(self) -> bool:
        """Whether nothing more is to be read for it."""
        return len(self.buffer) >= MAX_BUFFERED or self.buffered_bytes >= MAX_BUFFERED_BYTES

    @property
    def low(self) -> bool:
        """Whether it wants more, though a read for others is out."""
        return len(self.buffer) <= REFILL_BELOW and self.buffered_bytes < MAX_BUFFERED_BYTES

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
        return any(matches_topic(pattern, routing_key) for pattern in self.patterns)

    def take(self) -> Delivery:
        """Take the next delivery, what comes again first."""
        position, buffer = self.position, self.buffer
        if position.to_redeliver:
            opened = position.take_again()
            if opened is not None:
                return self, opened.entry, opened.before, True
        entry = buffer.popleft()
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


class FanoutReader:
    """Reads all streams of one connection with one blocked XREAD."""

    def __init__(self, commands: BlockingConnection, *, patterns: bool, polling_interval_s: float) -> None:
        """Block over `commands`; `patterns` filters by routing key."""
        self._commands = commands
        self._patterns = patterns
        self._interval_s = polling_interval_s
        self._by_stream: dict[bytes, list[Subscription]] = {}
        #: Those that may have something to deliver, in turn.
        self.ready: deque[Subscription] = deque()
        #: Whom the outstanding read is for, by stream.
        self._asked: dict[bytes, list[Subscription]] = {}
        #: Whether the last read was full, or one of a burst: there may be many entries.
        self._many = True
        self._page = BLIND_PAGE
        self._waiting = False
        self._waiting_since = 0.0
        self._rest_s = self._rest_until = 0.0

    # -- subscriptions --------------------------------------------------------------------------------------------------

    def subscribe(self, position: SubscriberCursor, pattern: str, consumer: Any, may: Callable[[], bool] | None) -> None:
        """Read for `position` too; the same position again only adds the pattern."""
        subscriptions = self._by_stream.setdefault(position.stream, [])
        for subscription in subscriptions:
            if subscription.position is position:
                subscription.consumer, subscription.may = consumer, may
                subscription.patterns.add(pattern)
                return
        subscription = Subscription(position, consumer, may)
        subscription.patterns.add(pattern)
        subscriptions.append(subscription)
        self.ready.append(subscription)
        self.interrupt()

    def unsubscribe(self, queue: str) -> None:
        """Stop reading for `queue`; what was read and not delivered stays unread."""
        for stream, subscriptions in list(self._by_stream.items()):
            left = [subscription for subscription in subscriptions if subscription.position.queue != queue]
            if len(left) == len(subscriptions):
                continue
            self.interrupt()
            if left:
                self._by_stream[stream] = left
            else:
                del self._by_stream[stream]
        self.ready = deque(subscription for subscription in self.ready if subscription.position.queue != queue)

    def interrupt(self) -> None:
        """End a blocked read, perhaps since its streams have changed. XREAD takes nothing away, so the connection may go."""
        if self._waiting:
            self._waiting = False
            self._commands.close()

    def _all(self) -> Iterator[Subscription]:
        for subscriptions in self._by_stream.values():
            yield from subscriptions

    # -- reading --------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a blocked read is outstanding."""
        return self._waiting

    def rest_s(self) -> float:
        """Return for how many seconds the next read had better wait, so that it brings several entries; 0: for none."""
        if not self._rest_until:
            return 0.0
        return max(0.0, self._rest_until - time.monotonic())

    def _wanting(self) -> dict[bytes, list[Subscription]]:
        """Return whom to read for: everybody whose buffer has room."""
        wanting = {}
        for stream, subscriptions in self._by_stream.items():
            open_ones = [subscription for subscription in subscriptions if not subscription.full]
            if open_ones:
                wanting[stream] = open_ones
        return wanting

    @property
    def wants(self) -> bool:
        """Whether a read should be outstanding, and is not; one that was out for others only is ended."""
        if not self._by_stream:
            return False
        if self._waiting and any(
            subscription.low and subscription not in self._asked.get(stream, ())
            for stream, subscriptions in self._by_stream.items()
            for subscription in subscriptions
        ):
            self.interrupt()
        return not self._waiting and bool(self._wanting())

    def start_wait(self) -> None:
        """Send the blocked read. Raises as `BlockingConnection.start` does."""
        self._asked = self._wanting()
        self._page = self._page_now() if self._many else BLIND_PAGE
        ids = [min((one.fetched for one in asked), key=lambda mark: mark.id).entry for asked in self._asked.values()]
        block_ms = int(self._interval_s * 1000)
        streams = (*self._asked, *ids)
        self._commands.start("XREAD", "COUNT", self._page, "BLOCK", block_ms, "STREAMS", *streams, lasts_s=self._interval_s)
        self._waiting = True
        self._waiting_since = time.monotonic()

    def _page_now(self) -> int:
        """Return how many entries a read may bring, by the largest entry to be read. Raises as `start_wait` does."""
        page = STREAM_PAGE
        for asked in self._asked.values():
            self._commands.start("HMGET", asked[0].position.keys.meta, "large", "largest")
            last_large, largest = self._commands.finish()
            if last_large and int(last_large) > min(one.fetched.number for one in asked):
                page = min(page, max(1, STREAM_PAGE_BYTES // int(largest) // len(self._asked)))
        return page

    def arrived(self) -> bool:
        """Tell, without waiting, whether the read has ended. Raises as `BlockingConnection.arrived`."""
        if not self._waiting:
            return False
        try:
            return self._commands.arrived()
        except ServerTimeout:
            self._waiting = False
            raise

    def take(self) -> None:
        """Put what the ended read brought into the buffers. Raises as `BlockingConnection.finish`."""
        self._waiting = False
        most = 0
        for stream, entries in self._commands.finish() or ():
            most = max(most, len(entries))
            for subscription in self._asked.get(bytes(stream), ()):
                subscription.fill(entries, filtered=self._patterns)
                if subscription not in self.ready:
                    self.ready.append(subscription)
        now = time.monotonic()
        # A read that ended as soon as it began is one of a burst: the entries of some milliseconds come in one read then.
        if 0 < most < self._page and (most > 1 or now - self._waiting_since < BURST_S):
            self._rest_s = min(max(2 * self._rest_s, FIRST_REST_S), LONGEST_REST_S)
            self._rest_until = now + self._rest_s
            self._many = True
        else:
            self._many = most >= self._page
            self._rest_s = self._rest_until = 0.0

    # -- deliveries -------------------------------------------------------------------------------------------------------

    def next(self) -> Delivery | None:
        """Take the next broadcast to deliver, of the subscribers in turn; None where there is none, or none may take one."""
        ready = self.ready
        for _ in range(len(ready)):
            subscription = ready[0]
            if not subscription.buffer and not subscription.position.to_redeliver:
                ready.popleft()
                continue
            if len(ready) > 1:
                ready.rotate(-1)
            may = subscription.may
            if may is None or may():
                return subscription.take()
        return None

    def apply_changes(self) -> bool:
        """Take up what other threads have left in the positions: deliveries that come again, streams that went back.

        Returns whether there is a subscriber with something to deliver that was out of the running.
        """
        found = False
        for subscription in list(self._all()):
            position = subscription.position
            if position.to_redeliver and subscription not in self.ready:
                self.ready.append(subscription)
                found = True
            rewind_to, position.rewind_to = position.rewind_to, None
            if rewind_to is not None:
                subscription.report(None, b"")
                subscription.buffer.clear()
                subscription.buffered_bytes = 0
                subscription.fetched = rewind_to
                position.seek(rewind_to)
                self.interrupt()
        return found

    @property
    def buffered(self) -> int:
        """How many broadcasts wait for delivery."""
        return sum(len(subscription.buffer) + len(subscription.position.to_redeliver) for subscription in self._all())


def _size(entry: Entry) -> int:
    """Return the bytes of an entry's payload."""
    return sum(map(len, entry[1]))
