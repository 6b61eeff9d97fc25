"""What a message costs to consume when 500,000 are queued, against 3,000.

Bodies are small here (100 bytes), so that the backlog fits into a few hundred MB.
"""

from __future__ import annotations

import multiprocessing

from kombu import Queue

from benchmarks.bench import Bench, Figures, MeasurementError, publish_to, size_of
from benchmarks.measurements.consume import consume_metered

BODY = {"payload": "x" * 80}
PREFETCH = 100
WARM_UP = 200
LOADERS = 2
ALTERNATIONS = 3


def run(bench: Bench) -> Figures:
    """Load the deep queue with two processes, then consume alternately."""
    deep_size = bench.size(6_000, 500_000)
    small_size = 3_000
    count = small_size - WARM_UP
    deep = Queue("bench.deep")
    small = Queue("bench.small")
    _load(bench, deep, deep_size)
    figures: Figures = {}
    with bench.connect() as connection:
        arrived = size_of(connection, deep.name)
        if arrived != deep_size:
            raise MeasurementError(f"published {deep_size} messages, {arrived} are in the queue")
        publish_to(connection, [small], small_size, BODY)
        # By turns: if the machine slows down in between, both sides see it.
        cpu: dict[str, list[float]] = {"small": [], "deep": []}
        for name, queue in (("small", small), ("deep", deep)) * bench.size(1, ALTERNATIONS):
            if not size_of(connection, queue.name):
                publish_to(connection, [queue], small_size, BODY)
            meter = bench.meter()
            consume_metered(connection, [queue], PREFETCH, WARM_UP, count, meter)
            cpu[name].append(meter.client_s / count * 1e6)
            figures |= meter.figures(f"backlog_{name}", count)
    for name, values in cpu.items():
        figures[f"backlog_{name}.client_us"] = min(values)
    figures["backlog.growth"] = min(cpu["deep"]) / min(cpu["small"])
    return figures


def _load(bench: Bench, queue: Queue, count: int) -> None:
    context = multiprocessing.get_context("fork")
    loaders = [context.Process(target=_publish, args=(bench, queue, count // LOADERS), daemon=True) for _ in range(LOADERS)]
    for loader in loaders:
        loader.start()
    for loader in loaders:
        loader.join()
        if loader.exitcode:
            raise MeasurementError(f"loading the backlog failed with code {loader.exitcode}")


def _publish(bench: Bench, queue: Queue, count: int) -> None:
    with bench.connect() as connection:
        publish_to(connection, [queue], count, BODY)
