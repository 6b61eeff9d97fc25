"""How long the warm shutdown (SIGTERM) of an idle prefork worker takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.worker import running_worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench, Figures


def run(bench: Bench) -> Figures:
    """Start a worker, let it come to rest, stop it."""
    with running_worker(bench, "prefork", 2) as worker:
        worker.wait_ready()
        worker.settle()
        return {"shutdown.s": worker.stop()}
