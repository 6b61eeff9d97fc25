"""One consumer on 100 queues against the same work in few."""

from __future__ import annotations

from kombu import Queue

from benchmarks.bench import Bench, Figures, publish_to
from benchmarks.measurements.consume import consume_metered

QUEUES = 100
PREFETCH = 100
WARM_UP = 200


def run(bench: Bench) -> Figures:
    """Consume a backlog that is spread evenly."""
    count = bench.size(1_500, 5_000)
    queues = [Queue(f"bench.many.{number}") for number in range(QUEUES)]
    meter = bench.meter()
    with bench.connect() as connection:
        publish_to(connection, queues, count + WARM_UP)
        consume_metered(connection, queues, PREFETCH, WARM_UP, count, meter)
    return meter.figures("queues100", count)
