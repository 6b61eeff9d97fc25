"""Consume and ack a backlog at prefetch 1, 10 and 100: kombu's Consumer and drain_events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu import Connection, Queue

from benchmarks.bench import Bench, Figures, MeasurementError, consuming, publish_to, size_of

if TYPE_CHECKING:
    from benchmarks.meters import Meter

WARM_UP = 200
PREFETCHES = (1, 10, 100)


def run(bench: Bench) -> Figures:
    """One backlog for each prefetch."""
    figures: Figures = {}
    count = bench.size(2_000, 3_000)
    with bench.connect() as connection:
        for prefetch in PREFETCHES:
            queue = Queue(f"bench.consume.{prefetch}")
            publish_to(connection, [queue], count + WARM_UP)
            meter = bench.meter()
            consume_metered(connection, [queue], prefetch, WARM_UP, count, meter)
            left = size_of(connection, queue.name)
            if left:
                raise MeasurementError(f"{left} messages were left after consuming all that was published")
            figures |= meter.figures(f"consume{prefetch}", count)
    return figures


def consume_metered(connection: Connection, queues: list[Queue], prefetch: int, warm_up: int, count: int, meter: Meter) -> None:
    """Consume ``warm_up`` messages, then ``count`` under the meter; every message once."""
    seen: set[str] = set()
    note = seen.add

    def on_message(message: Any) -> None:
        note(message.delivery_tag)
        message.ack()

    with consuming(connection, queues, on_message, prefetch):
        drain = connection.drain_events
        while len(seen) < warm_up:
            drain(timeout=10)
        first = len(seen)
        meter.start()
        while len(seen) < warm_up + count:
            drain(timeout=10)
        meter.stop()
    if first != warm_up:
        raise MeasurementError(f"one drain_events delivered {first - warm_up} messages more than one")
