"""What an idle prefork worker costs: commands a second at the server, CPU of its processes."""

from __future__ import annotations

import time

from benchmarks.bench import Bench, Figures, MeasurementError
from benchmarks.meters import cpu_of_tree
from benchmarks.worker import running_worker


def run(bench: Bench) -> Figures:
    """Start a worker, let it come to rest, look at it for a while."""
    server = bench.server
    if server is None:
        raise MeasurementError("this contender's server cannot be asked for its commands")
    with running_worker(bench, "prefork", 2) as worker:
        worker.wait_ready()
        worker.settle()
        cpu = cpu_of_tree(worker.process.pid)
        began = time.monotonic()
        commands = server.commands_sent(bench.size(5, 40))
        elapsed = time.monotonic() - began
        cpu = cpu_of_tree(worker.process.pid) - cpu
    return {"idle.commands": commands / elapsed, "idle.cpu_percent": cpu / elapsed * 100}
