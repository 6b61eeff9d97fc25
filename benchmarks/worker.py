"""A real ``celery worker`` as a child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, MeasurementError
from benchmarks.journal import READY, Journal
from benchmarks.meters import cpu_of_tree, process_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_S = 60.0
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Worker:
    """A started worker and the journal that its tasks write."""

    process: subprocess.Popen[bytes]
    journal: Journal
    log: Path

    def wait_ready(self) -> float:
        """The wall-clock time at which the worker said it was ready."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            for entry in self.journal.entries():
                if entry.seq == READY:
                    return entry.at
            if self.process.poll() is not None:
                raise MeasurementError(f"the worker ended while starting:\n{self.tail()}")
            time.sleep(0.05)
        raise MeasurementError(f"the worker was not ready within {START_TIMEOUT_S:g} s:\n{self.tail()}")

    def wait_tasks(self, count: int, timeout_s: float, wanted: str = "tasks") -> None:
        """Until ``count`` tasks ran (the record of the ready signal is not one of them)."""
        if not self.journal.wait(count + 1, timeout_s):
            ran = self.journal.count() - 1
            raise MeasurementError(f"{ran} of {count} {wanted} ran within {timeout_s:g} s:\n{self.tail()}")

    def settle(self, timeout_s: float = 120.0, quiet_share: float = 0.05) -> None:
        """Until the worker uses less than ``quiet_share`` of a CPU over a second."""
        give_up_at = time.monotonic() + timeout_s
        while time.monotonic() < give_up_at:
            before = cpu_of_tree(self.process.pid)
            time.sleep(1.0)
            if cpu_of_tree(self.process.pid) - before < quiet_share:
                return
        raise MeasurementError(f"the worker was still busy after {timeout_s:g} s")

    def stop(self) -> float:
        """Warm shutdown; how long it took."""
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"no warm shutdown within 60 s:\n{self.tail()}") from None
        return time.perf_counter() - began

    def kill(self) -> None:
        """End the worker and its pool processes at once, each by its id."""
        if self.process.poll() is not None:
            return
        for pid in process_tree(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def tail(self) -> str:
        """The end of the worker's log."""
        return self.log.read_text(errors="replace")[-2000:]


@contextmanager
def running_worker(bench: Bench, pool: str, concurrency: int = 1, *, node: str = "", **conf: Any) -> Iterator[Worker]:
    """A worker of this contender's app, with the name `node` or Celery's default; killed at the end unless it was stopped."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.app", "worker", "--loglevel", "WARNING"]
    command += ["--pool", pool, "--concurrency", str(concurrency)]
    command += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
    command += ["--hostname", node] if node else []
    environment = {**os.environ, **bench.app_environment(**conf), "PYTHONPATH": _python_path()}
    log = bench.directory / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=bench.directory, stdout=output, stderr=subprocess.STDOUT)
    journal = bench.journal()
    worker = Worker(process, journal, log)
    try:
        yield worker
    finally:
        worker.kill()
        journal.close()


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
