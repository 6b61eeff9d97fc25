"""How late tasks with a countdown start on a warm, idle prefork worker, and that none is early."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.bench import PAYLOAD, Bench, Figures, MeasurementError
from benchmarks.journal import READY
from benchmarks.meters import rss_of_tree
from benchmarks.stats import percentile
from benchmarks.worker import Worker, running_worker

WARM_UP = 20
FAR_S = 3600.0


def idle(bench: Bench) -> Figures:
    """200 tasks with 1-5 s countdowns on an otherwise empty broker."""
    app = bench.app_module()
    with running_worker(bench, "prefork", 2) as worker:
        worker.wait_ready()
        _warm_up(app, worker)
        return _lateness(app, worker, bench.size(100, 200), (1.0, bench.size(3.0, 5.0)), "countdown")


def behind_far_tasks(bench: Bench) -> Figures:
    """The same when many tasks wait that are due in an hour, and what those cost the worker."""
    app = bench.app_module()
    far = bench.size(5_000, 50_000)
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
        figures = _lateness(app, worker, bench.size(100, 200), (1.0, bench.size(3.0, 5.0)), "far")
    return figures | {"far.worker_growth_mb": growth / 1e6}


def burst(bench: Bench) -> Figures:
    """3,000 tasks that all become due within 10 seconds."""
    app = bench.app_module()
    count = bench.size(600, 3_000)
    # The first is due once all were sent, also by a slow publisher.
    window = bench.size((1.5, 3.5), (4.0, 14.0))
    with running_worker(bench, "prefork", 2) as worker:
        worker.wait_ready()
        _warm_up(app, worker)
        return _lateness(app, worker, count, window, "burst")


def _warm_up(app: Any, worker: Worker) -> None:
    for number in range(WARM_UP):
        app.noop.apply_async((number, PAYLOAD), countdown=number % 2 * 0.3 or None)
    worker.wait_tasks(WARM_UP, 30, "warm-up tasks")
    worker.settle()


def _send(app: Any, producer: Any, seq: int, due: float) -> None:
    eta = datetime.fromtimestamp(due, UTC)
    app.noop.apply_async((seq, PAYLOAD, due), eta=eta, producer=producer)


def _lateness(app: Any, worker: Worker, count: int, countdown_s: tuple[float, float], prefix: str) -> Figures:
    done_before = worker.journal.count() - 1
    draw = random.Random(11)
    began = time.time()
    with app.app.producer_pool.acquire(block=True) as producer:
        for number in range(count):
            _send(app, producer, number, began + draw.uniform(*countdown_s))
    if time.time() - began > countdown_s[0]:
        raise MeasurementError(f"sending took longer than the first countdown of {countdown_s[0]:g} s")
    ended = worker.journal.wait(done_before + 1 + count, countdown_s[1] + 30)
    runs = [entry for entry in worker.journal.entries() if entry.due and entry.seq != READY]
    late_ms = [(entry.at - entry.due) * 1000 for entry in runs]
    if not late_ms:
        raise MeasurementError("no task with a countdown ran")
    return {
        f"{prefix}.late_p50_ms": percentile(late_ms, 50),
        f"{prefix}.late_p99_ms": percentile(late_ms, 99),
        f"{prefix}.late_max_ms": max(late_ms),
        f"{prefix}.early": float(sum(late < 0 for late in late_ms)),
        f"{prefix}.missing": float(0 if ended else count - len({entry.seq for entry in runs})),
    }
