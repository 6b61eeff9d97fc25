"""What ``task.delay()`` with a 1 KB argument costs the caller."""

from __future__ import annotations

from benchmarks.bench import PAYLOAD, Bench, Figures

WARM_UP = 200


def run(bench: Bench) -> Figures:
    """Call ``delay`` in a loop, as a web process does."""
    count = bench.size(1_500, 2_000)
    delay = bench.app_module().noop.delay
    for number in range(WARM_UP):
        delay(number, PAYLOAD)
    meter = bench.meter()
    meter.start()
    for number in range(count):
        delay(number, PAYLOAD)
    meter.stop()
    return meter.figures("delay", count)
