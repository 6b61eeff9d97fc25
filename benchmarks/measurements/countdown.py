"""How late tasks with a countdown start on a warm, idle prefork worker, and that none is early.

For ``idle`` and ``behind_far_tasks`` the tasks are sent one by one, every 20 ms, so that each meets a
worker that sleeps, as countdowns do in life; for ``burst`` all are sent first and become due together.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.bench import PAYLOAD, Bench, Figures, MeasurementError
from benchmarks.meters import rss_of_tree
from benchmarks.stats import percentile
from benchmarks.worker import Worker, running_worker

WARM_UP = 20
READY_AND_WARM_UP = 1 + WARM_UP
FAR_S = 3600.0
PACE_S = 0.02


def idle(bench: Bench) -> Figures:
    """200 tasks with countdowns of 0.2 to 3 s on an otherwise empty broker."""
    app = bench.app_module()
    with running_worker(bench, "prefork", 2) as worker:
        worker.wait_ready()
        _warm_up(app, worker)
        return _paced(app, worker, bench.size(60, 200), "countdown")


def behind_far_tasks(bench: Bench) -> Figures:
    """The same when many tasks wait that are due in an hour, and what those cost the worker."""
    app = bench.app_module()
    far = bench.size(3_000, 50_000)
    with running_worker(bench, "prefork", 2) as worker:
        worker.wait_ready()
        _warm_up(app, worker)
        memory_before = rss_of_tree(worker.process.pid)
        due = time.time() + FAR_S
        with app.app.producer_pool.acquire(block=True) as producer:
            for number in range(far):
                _send(app, producer, number, due)
        worker.settle(timeout_s=300)
        growth = rss_of_tree(worker.process.pid) - memory_before
        figures = _paced(app, worker, bench.size(60, 200), "far")
    return figures | {"far.worker_growth_mb": growth / 1e6}


def burst(bench: Bench) -> Figures:
    """3,000 tasks that all become due within 10 seconds, the first when all were sent."""
    app = bench.app_module()
    count = bench.size(600, 3_000)
    head_start_s = bench.size(1.5, 4.0)
    window_s = bench.size(2.0, 10.0)
    with running_worker(bench, "prefork", 2) as worker:
        worker.wait_ready()
        _warm_up(app, worker)
        draw = random.Random(11)
        meter = bench.meter()
        meter.start()
        began = time.time()
        with app.app.producer_pool.acquire(block=True) as producer:
            for number in range(count):
                _send(app, producer, number, began + head_start_s + draw.uniform(0, window_s))
        if time.time() - began > head_start_s:
            raise MeasurementError(f"sending took longer than {head_start_s:g} s")
        figures = _lateness(worker, count, head_start_s + window_s + 30, "burst")
        meter.stop()
    if meter.server_s is not None:
        figures["burst.server_us"] = meter.server_s / count * 1e6
    return figures


def _paced(app: Any, worker: Worker, count: int, prefix: str) -> Figures:
    draw = random.Random(11)
    with app.app.producer_pool.acquire(block=True) as producer:
        for number in range(count):
            _send(app, producer, number, time.time() + draw.uniform(0.2, 3.0))
            time.sleep(PACE_S)
    return _lateness(worker, count, 33, prefix)


def _warm_up(app: Any, worker: Worker) -> None:
    for number in range(WARM_UP):
        app.noop.apply_async((number, PAYLOAD), countdown=number % 2 * 0.3 or None)
    worker.wait_tasks(WARM_UP, 30, "warm-up tasks")
    worker.settle()


def _send(app: Any, producer: Any, seq: int, due: float) -> None:
    eta = datetime.fromtimestamp(due, UTC)
    app.noop.apply_async((seq, PAYLOAD, due), eta=eta, producer=producer)


def _lateness(worker: Worker, count: int, timeout_s: float, prefix: str) -> Figures:
    """Of the tasks that carry their due time, which the warm-up's do not."""
    worker.journal.wait(READY_AND_WARM_UP + count, timeout_s)
    runs = [entry for entry in worker.journal.entries() if entry.due]
    late_ms = [(entry.at - entry.due) * 1000 for entry in runs]
    if not late_ms:
        raise MeasurementError("no task with a countdown ran")
    return {
        f"{prefix}.late_p50_ms": percentile(late_ms, 50),
        f"{prefix}.late_p99_ms": percentile(late_ms, 99),
        f"{prefix}.late_max_ms": max(late_ms),
        f"{prefix}.early": float(sum(late < 0 for late in late_ms)),
        f"{prefix}.missing": float(count - len({entry.seq for entry in runs})),
    }
