"""Broadcasts: reads the streams of fanout exchanges for the queues that are bound to them.

Every subscriber reads every entry with a cursor of its own. The cursor is taken when the queue is bound, not at the first
read, so nothing falls between; it moves on when an entry is delivered, and outlives the connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.broker.topics import matches_topic
from celery_redis_plus.errors import ServerTimeout
from celery_redis_plus.message import split_payload

if TYPE_CHECKING:
    from celery_redis_plus.topology.blocking_wire import BlockingWire
    from celery_redis_plus.topology.wire import Wire

logger = logging.getLogger(__name__)

#: Entries of one stream that one read brings.
PAGE = 100
#: A read that brings something within so many seconds is one of a burst; the next one waits for `REST_S` seconds.
BURST_S, REST_S = 0.005, 0.010
#: Seconds by which an answer may be late.
OVERDUE_S = 5.0

EntryId = tuple[int, int]
START: EntryId = (0, 0)


def parse_id(text: bytes) -> EntryId:
    """Return a stream entry's id as two numbers, which compare as the server compares them."""
    milliseconds, _, sequence = text.partition(b"-")
    return int(milliseconds), int(sequence or 0)


class Positions:
    """The last entry that each queue of this process has processed, by queue and stream; survives connections."""

    def __init__(self, keep_s: float) -> None:
        """Forget a position that nobody used for `keep_s` seconds."""
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._last: dict[tuple[str, bytes], tuple[EntryId, float]] = {}

    def get(self, queue: str, stream: bytes) -> EntryId | None:
        """Return where the queue goes on, None where it never was, or too long ago."""
        known = self._last.get((queue, stream))
        if known is None or time.monotonic() - known[1] > self._keep_s:
            return None
        return known[0]

    def set(self, queue: str, stream: bytes, entry: EntryId) -> None:
        """Note that the queue has processed everything up to `entry`."""
        self._last[queue, stream] = (entry, time.monotonic())

    def keep(self, queue: str) -> None:
        """Start the clock anew for a queue whose connection has just gone."""
        with self._lock:
            for key in [key for key in self._last if key[0] == queue]:
                self._last[key] = (self._last[key][0], time.monotonic())

    def forget(self, queue: str) -> None:
        """Forget a queue that was cancelled or deleted in order."""
        with self._lock:
            for key in [key for key in self._last if key[0] == queue]:
                self._last.pop(key, None)


@dataclass(slots=True)
class _Subscription:
    """One queue on one stream."""

    queue: str
    exchange: str
    patterns: set[str] = field(default_factory=set)

    def wants(self, routing_key: str, *, patterns: bool) -> bool:
        """Filter as the option `fanout_patterns` says; a binding without a key takes everything, as AMQP's fanout does."""
        return not patterns or "" in self.patterns or any(matches_topic(pattern, routing_key) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One entry for one queue."""

    queue: str
    exchange: str
    stream: bytes
    entry: EntryId
    routing_key: str
    envelope: bytes
    body: bytes


class FanoutReader:
    """Reads all streams of one connection with one blocked XREAD."""

    def __init__(self, wire: BlockingWire, positions: Positions, *, patterns: bool, polling_interval_s: float) -> None:
        """Block over `wire`; `patterns` filters by routing key."""
        self._wire = wire
        self._positions = positions
        self._patterns = patterns
        self._interval_s = polling_interval_s
        self._by_stream: dict[bytes, dict[str, _Subscription]] = {}
        self._read_up_to: dict[bytes, EntryId] = {}
        self._buffer: deque[Broadcast] = deque()
        self._armed = False
        self._armed_at = 0.0
        self._rest_until = 0.0

    # -- subscriptions --------------------------------------------------------------------------------------------------

    def subscribe(self, queue: str, exchange: str, stream: bytes, pattern: str) -> None:
        """Read `stream` for `queue` from its position on, which the caller has set before."""
        queues = self._by_stream.setdefault(stream, {})
        subscription = queues.setdefault(queue, _Subscription(queue, exchange))
        subscription.patterns.add(pattern)
        start = self._positions.get(queue, stream) or START
        known = self._read_up_to.get(stream)
        if known is None or start < known:
            self._read_up_to[stream] = start
        self._interrupt()

    def unsubscribe(self, queue: str) -> None:
        """Stop reading for `queue`; what was read and not delivered stays unread."""
        for stream in list(self._by_stream):
            if self._by_stream[stream].pop(queue, None) is not None and not self._by_stream[stream]:
                del self._by_stream[stream]
                self._read_up_to.pop(stream, None)
        self._buffer = deque(item for item in self._buffer if item.queue != queue)
        self._interrupt()

    @property
    def active(self) -> bool:
        """Whether anything is subscribed."""
        return bool(self._by_stream)

    def _interrupt(self) -> None:
        """End a blocked read whose streams have changed. XREAD takes nothing away, so the connection may just go."""
        if self._armed:
            self._armed = False
            self._wire.close()

    # -- reading --------------------------------------------------------------------------------------------------------

    @property
    def armed(self) -> bool:
        """Whether a blocked read is outstanding."""
        return self._armed

    def rest_s(self) -> float:
        """Return for how many seconds the next read had better wait, so that it brings several entries; 0: for none."""
        return max(0.0, self._rest_until - time.monotonic()) if self._rest_until else 0.0

    def arm(self) -> None:
        """Send the blocked read. Raises as `BlockingWire.start` does."""
        streams = list(self._by_stream)
        ids = ["{}-{}".format(*self._read_up_to[stream]) for stream in streams]
        block_ms = int(self._interval_s * 1000)
        self._wire.start("XREAD", "COUNT", PAGE, "BLOCK", block_ms, "STREAMS", *streams, *ids)
        self._armed = True
        self._armed_at = time.monotonic()

    def arrived(self) -> bool:
        """Tell, without waiting, whether the read has ended.

        Raises:
            ServerTimeout: the server did not answer its own timeout: the peer is gone without a word.
        """
        if not self._armed:
            return False
        if self._wire.arrived():
            return True
        if time.monotonic() > self._armed_at + self._interval_s + OVERDUE_S:
            error = ServerTimeout(
                f"no answer to a blocking read for {self._interval_s + OVERDUE_S:.0f} s; the connection is dead"
            )
            self._armed = False
            self._wire.abandon(error)
            raise error
        return False

    def take(self) -> None:
        """Put what the ended read brought into the buffer: every entry of every stream. Raises as `BlockingWire.finish`."""
        self._armed = False
        brought = 0
        for stream, entries in self._wire.finish() or ():
            brought += len(entries)
            for entry_id, fields in entries:
                self._enter(bytes(stream), parse_id(entry_id), fields)
        now = time.monotonic()
        # A read that ended as soon as it began is one of a burst: the entries of some milliseconds come in one read then.
        self._rest_until = now + REST_S if brought and brought < PAGE and now - self._armed_at < BURST_S else 0.0

    def _enter(self, stream: bytes, entry: EntryId, fields: list[bytes] | None) -> None:
        self._read_up_to[stream] = max(entry, self._read_up_to.get(stream, START))
        values = dict(zip(fields[::2], fields[1::2], strict=True)) if fields else {}
        payload = values.get(b"payload")
        if payload is None:
            logger.warning("entry %s of stream %r is no broadcast of ours; passed over", entry, stream)
            return
        envelope, body = split_payload(payload)
        routing_key = values.get(b"routing_key", b"").decode("utf-8", "surrogateescape")
        for queue, subscription in self._by_stream.get(stream, {}).items():
            if entry <= (self._positions.get(queue, stream) or START):
                continue
            if subscription.wants(routing_key, patterns=self._patterns):
                self._buffer.append(
                    Broadcast(queue, subscription.exchange, stream, entry, routing_key, envelope, body or b"")
                )  # fmt: skip
            else:
                self._positions.set(queue, stream, entry)

    def next(self) -> Broadcast | None:
        """Take the next broadcast to deliver; it counts as processed from now on."""
        if not self._buffer:
            return None
        broadcast = self._buffer.popleft()
        self._positions.set(broadcast.queue, broadcast.stream, broadcast.entry)
        return broadcast

    @property
    def buffered(self) -> int:
        """How many broadcasts wait for delivery."""
        return len(self._buffer)


def last_entry(commands: Wire, stream: bytes) -> EntryId:
    """Return the id of the newest entry that the stream has had; `START` where it has none."""
    entries = commands.command("XREVRANGE", stream, "+", "-", "COUNT", 1)
    return parse_id(entries[0][0]) if entries else START
