"""Server memory for each waiting task with a 1 KB argument, queued and delayed."""

from __future__ import annotations

from typing import Any

from benchmarks.bench import PAYLOAD, Bench, Figures, MeasurementError
from benchmarks.contenders import FLOOR

FIRST = 10


def run(bench: Bench) -> Figures:
    """The growth of the server's used_memory over many tasks."""
    server = bench.server
    if server is None:
        raise MeasurementError("this contender's messages are not in the server")
    count = bench.size(3_000, 20_000)
    noop = bench.app_module().noop
    figures: Figures = {}
    options: dict[str, dict[str, Any]] = {"queued": {}, "delayed": {"countdown": 3600}}
    for state, how in options.items():
        if state == "delayed" and bench.contender.name == FLOOR:
            continue  # the floor does not know delays
        for number in range(FIRST):  # connections, scripts and the queue's own keys are not counted
            noop.apply_async((number, PAYLOAD), **how)
        before = server.used_memory()
        for number in range(count):
            noop.apply_async((number, PAYLOAD), **how)
        figures[f"memory.{state}_bytes"] = (server.used_memory() - before) / count
    return figures
