"""The blocked read of one connection over all streams that its queues are bound to.

Every stream is read once for all subscribers of the connection, and every subscriber has a buffer of its own: one that takes
nothing stops being read for, and the others go on.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.fanout.subscription import Delivery, Subscription
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.errors import WrongKeyType

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor
    from celery_redis_plus.connection.blocking_connection import BlockingConnection

logger = logging.getLogger(__name__)

#: Most entries of one stream in one read when all are small; and most bytes when some are large.
STREAM_PAGE, STREAM_PAGE_BYTES = 500, 2_000_000
#: Entries that a read asks for when the lengths of the streams are unknown. Usually it blocks and returns one.
BLIND_PAGE = 4
#: A read that brings something within so many seconds, or several entries, is one of a burst. The next one waits, so that it
#: brings more at once: first for a moment, then twice as long each time, because a read costs as much as 20 entries, and on a
#: busy machine more: 50 subscribers that wake for every single broadcast leave no time to its publisher.
BURST_S, FIRST_REST_S, LONGEST_REST_S = 0.002, 0.004, 0.050
#: Seconds for which a stream is left out whose key is of another type, and after which a read without it ends.
LEFT_OUT_S = 5.0


class FanoutReader:
    """Reads all streams of one connection with one blocked XREAD."""

    def __init__(
        self,
        commands: BlockingConnection,
        *,
        patterns: bool,
        wait_s: float,
    ) -> None:
        """Block over `commands`, for `wait_s` seconds at most; `patterns` filters by routing key."""
        self._commands = commands
        self._patterns = patterns
        self._wait_s = wait_s
        self._by_stream: dict[bytes, list[Subscription]] = {}
        #: Those that may have something to deliver, in turn.
        self.ready: deque[Subscription] = deque()
        #: Whom the outstanding read is for, by stream, and all of them: a process may have a subscriber for each of its clients.
        self._asked: dict[bytes, list[Subscription]] = {}
        self._all_asked: frozenset[Subscription] = frozenset()
        #: Whether the last read was full, or one of a burst: there may be many entries.
        self._many = True
        self._page = BLIND_PAGE
        self._waiting = False
        self._waiting_since = 0.0
        self._rest_s = self._rest_until = 0.0
        #: Streams whose keys are of another type: a read that has them fails for all.
        self._left_out: frozenset[bytes] = frozenset()
        #: Until when, on the monotonic clock, in seconds.
        self._left_out_until = 0.0
        self._failures = KeyFailures(logger, "has a stream that cannot be read", kind="exchange")

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

    def _readable(self) -> dict[bytes, list[Subscription]]:
        """Return the subscriptions by stream, without the streams that are left out."""
        if not self._left_out:
            return self._by_stream
        return {stream: found for stream, found in self._by_stream.items() if stream not in self._left_out}

    def _wanting(self) -> dict[bytes, list[Subscription]]:
        """Return whom to read for: everybody whose buffer has room."""
        wanting = {}
        for stream, subscriptions in self._readable().items():
            open_ones = [subscription for subscription in subscriptions if not subscription.full]
            if open_ones:
                wanting[stream] = open_ones
        return wanting

    @property
    def wants(self) -> bool:
        """Whether a read should be outstanding, and is not; one that was out for others only is ended."""
        if not self._by_stream:
            return False
        if self._left_out and time.monotonic() >= self._left_out_until:
            self._left_out = frozenset()
        readable = chain.from_iterable(self._readable().values())
        if self._waiting and any(one.low and one not in self._all_asked for one in readable):
            self.interrupt()
        return not self._waiting and bool(self._wanting())

    def start_wait(self) -> None:
        """Send the blocked read. Raises as `BlockingConnection.start` does."""
        self._asked = self._wanting()
        self._all_asked = frozenset(chain.from_iterable(self._asked.values()))
        for stream, subscriptions in self._by_stream.items():
            for subscription in subscriptions:
                if subscription not in self._all_asked:
                    # What is left out holds up nothing.
                    subscription.more = stream not in self._left_out
        self._page = self._page_now() if self._many else BLIND_PAGE
        ids = [min((one.fetched for one in asked), key=lambda mark: mark.id).entry for asked in self._asked.values()]
        streams = (*self._asked, *ids)
        # One that the last read did not bring to its end may hold others back: what it has comes at once, or it has nothing.
        hurries = any(one.more for asked in self._asked.values() for one in asked)
        lasts_s = min(self._wait_s, LEFT_OUT_S) if self._left_out else self._wait_s
        block = () if hurries else ("BLOCK", int(lasts_s * 1000))
        self._commands.start("XREAD", "COUNT", self._page, *block, "STREAMS", *streams, lasts_s=lasts_s)
        self._waiting = True
        self._waiting_since = time.monotonic()

    def _page_now(self) -> int:
        """Return how many entries a read may bring, by the largest entry to be read. Raises as `start_wait` does."""
        page = STREAM_PAGE
        for asked in self._asked.values():
            self._commands.start("HMGET", asked[0].position.keys.meta, "large", "largest")
            # Somebody else may have written there: that holds up no broadcast.
            try:
                last_large, largest = (int(field or 0) for field in self._commands.finish())
            except (WrongKeyType, ValueError):
                page = min(page, BLIND_PAGE)
                continue
            if last_large > min(one.fetched.number for one in asked):
                page = min(page, max(1, STREAM_PAGE_BYTES // max(1, largest) // len(self._asked)))
        return page

    def arrived(self) -> bool:
        """Tell, without waiting, whether the read has ended; one that is overdue is dropped."""
        if not self._waiting:
            return False
        if self._commands.overdue:
            # The server ends the read by its wall clock: after a step back that is late. The next read shows whether it lives.
            self.interrupt()
            return False
        return self._commands.arrived()

    def take(self) -> None:
        """Put what the ended read brought into the buffers. Raises as `BlockingConnection.finish`.

        Where the server has refused the read for a stream whose key is of another type, the next ones go without.
        """
        self._waiting = False
        most = 0
        try:
            read = self._commands.finish() or ()
        except WrongKeyType as error:
            self._leave_out(error)
            read = ()
        for subscription in self._all_asked:
            subscription.more = False
        ready = {*self.ready}
        for stream, entries in read:
            asked = self._asked.get(bytes(stream), [])
            if not entries:
                # Redis 7.0 wakes readers for what a script has appended, and removed again because it failed.
                continue
            most = max(most, len(entries))
            for subscription in asked:
                subscription.fill(entries, filtered=self._patterns)
                subscription.more = len(entries) >= self._page
            self.ready.extend(subscription for subscription in asked if subscription not in ready)
        now = time.monotonic()
        # A read that ended as soon as it began is one of a burst: the entries of some milliseconds come in one read then.
        if 0 < most < self._page and (most > 1 or now - self._waiting_since < BURST_S):
            self._rest_s = min(max(2 * self._rest_s, FIRST_REST_S), LONGEST_REST_S)
            self._rest_until = now + self._rest_s
            self._many = True
        else:
            self._many = most >= self._page
            self._rest_s = self._rest_until = 0.0

    def _leave_out(self, error: WrongKeyType) -> None:
        """Leave out the streams whose keys are of another type, for which a read was refused, and log that."""
        found = []
        for stream, subscriptions in self._asked.items():
            self._commands.start("TYPE", stream)
            if self._commands.finish() not in (b"stream", b"none"):
                found.append(stream)
                self._failures.contain(error, subscriptions[0].position.keys.exchange)
        self._left_out, self._left_out_until = frozenset(found), time.monotonic() + LEFT_OUT_S

    # -- deliveries -------------------------------------------------------------------------------------------------------

    def next(self) -> Delivery | None:
        """Take the next broadcast to deliver: what comes again first, then by time and publisher, over all streams.

        So the broadcasts of one publisher come in its order, whatever exchanges it sends them to. None where there is none, where
        none may take one, or where an older one may have to be read first.
        """
        if len(self._by_stream) == 1:
            # Each subscriber has them in the stream's order, and among themselves they have none.
            first = self._next_in_turn()
            return None if first is None else first.take()
        ready = self.ready
        candidates: list[Subscription] = []
        comes_again = False
        for _ in range(len(ready)):
            subscription = ready[0]
            again = bool(subscription.position.to_redeliver)
            if not subscription.buffer and not again:
                ready.popleft()
                continue
            if len(ready) > 1:
                ready.rotate(-1)
            may = subscription.may
            if may is not None and not may():
                continue
            if again and not comes_again:
                comes_again = True
                candidates.clear()
            if again == comes_again:
                candidates.append(subscription)
        if not candidates:
            return None
        oldest = candidates[0] if len(candidates) == 1 else _earliest(candidates)
        if not comes_again and len(ready) + len(self._by_stream) > 2 and self._may_have_older(oldest.first_ms):
            return None
        return oldest.take()

    def _next_in_turn(self) -> Subscription | None:
        """Return the next one that has something and may take it."""
        ready = self.ready
        for _ in range(len(ready)):
            subscription = ready[0]
            if not subscription.buffer and not subscription.position.to_redeliver:
                ready.popleft()
                continue
            ready.rotate(-1)
            if subscription.may is None or subscription.may():
                return subscription
        return None

    def _may_have_older(self, ms: int) -> bool:
        """Tell whether a subscriber that reads on may have to read broadcasts of this time, or before."""
        return any(one.more and one.low and one.fetched.id[0] <= ms for one in self._all())

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
                subscription.rewind(rewind_to)
                self.interrupt()
        return found

    @property
    def buffered(self) -> int:
        """How many broadcasts wait for delivery."""
        return sum(len(subscription.buffer) + len(subscription.position.to_redeliver) for subscription in self._all())


def _earliest(candidates: list[Subscription]) -> Subscription:
    """Return whose head is the oldest, and was sent before all that the others hold of its publisher.

    Each stream has its broadcasts in the order of their publishes, and so has each publisher: the steps below go back in that
    order, and come to none twice.
    """
    first = min(candidates, key=lambda one: one.first_ms)
    for _ in candidates:
        before = next((one for one in candidates if one is not first and one.goes_before(first)), None)
        if before is None:
            break
        first = before
    return first
