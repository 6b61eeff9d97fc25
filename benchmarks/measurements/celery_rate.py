"""Celery end to end: a worker is started on a queue full of no-op tasks with a 1 KB argument.

The rate is taken between the first and the last task's own time stamps, so starting the worker is not
part of it. ``first_ms`` is the time from the worker's ready signal to its first task (0 when the first
task ran before the signal).
"""

from __future__ import annotations

from benchmarks.bench import PAYLOAD, Bench, Figures, MeasurementError
from benchmarks.journal import READY, Entry
from benchmarks.meters import Meter, cpu_of_tree
from benchmarks.worker import Worker, running_worker

LATE = {"task_acks_late": True, "worker_prefetch_multiplier": 1}


def solo(bench: Bench) -> Figures:
    """The solo pool, early acks."""
    return _rate(bench, "solo", "solo", 1)


def prefork(bench: Bench) -> Figures:
    """Two pool processes, early acks."""
    return _rate(bench, "prefork", "prefork", 2)


def threads(bench: Bench) -> Figures:
    """Four threads, early acks."""
    return _rate(bench, "threads", "threads", 4)


def solo_acks_late(bench: Bench) -> Figures:
    """The solo pool, late acks, one message at a time."""
    return _rate(bench, "solo_late", "solo", 1, **LATE)


def prefork_acks_late(bench: Bench) -> Figures:
    """Two pool processes, late acks, one message for each at a time."""
    return _rate(bench, "prefork_late", "prefork", 2, **LATE)


def _rate(bench: Bench, prefix: str, pool: str, concurrency: int, **conf: object) -> Figures:
    count = bench.size(1_500, 5_000)
    app = bench.app_module(**conf)
    publishing, meter = bench.meter(), bench.meter()
    publishing.start()
    with app.app.producer_pool.acquire(block=True) as producer:
        for number in range(count):
            app.noop.apply_async((number, PAYLOAD), producer=producer)
    publishing.stop()
    with running_worker(bench, pool, concurrency, **conf) as worker:
        ready_at, worker_us = _follow(worker, count, meter)
        entries = worker.journal.entries()
    runs = [entry for entry in entries if entry.seq != READY]
    missing = count - len({entry.seq for entry in runs})
    if missing:
        raise MeasurementError(f"{missing} of {count} tasks never ran")
    figures = _figures(prefix, runs, ready_at)
    figures[f"{prefix}.worker_us"] = worker_us
    if meter.server_s is not None:
        figures[f"{prefix}.server_us"] = meter.server_s / count * 1e6
        figures[f"{prefix}.through_us"] = (meter.server_s + (publishing.server_s or 0)) / count * 1e6
    if pool == "solo":
        figures[f"{prefix}.cpu_us"] = (runs[-1].cpu_s - runs[0].cpu_s) / (len(runs) - 1) * 1e6
    return figures


def _follow(worker: Worker, count: int, meter: Meter) -> tuple[float, float]:
    """When the worker was ready; its CPU (with its children) for each task of the measured part."""
    meter.start()
    worker.wait_tasks(1, 60)
    cpu_before, done_before = cpu_of_tree(worker.process.pid), worker.journal.count()
    worker.wait_tasks(count, 180)
    cpu_after, done_after = cpu_of_tree(worker.process.pid), worker.journal.count()
    meter.stop()
    worker_us = (cpu_after - cpu_before) / max(1, done_after - done_before) * 1e6
    return worker.wait_ready(), worker_us


def _figures(prefix: str, runs: list[Entry], ready_at: float) -> Figures:
    runs.sort(key=lambda entry: entry.at)
    first, last = runs[0].at, runs[-1].at
    return {
        f"{prefix}.rate": (len(runs) - 1) / (last - first),
        f"{prefix}.first_ms": max(0.0, first - ready_at) * 1000,
        f"{prefix}.repeated": float(len(runs) - len({entry.seq for entry in runs})),
    }
