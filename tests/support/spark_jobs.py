"""A program with a Spark session of its own, whose driver and JVM a test kills."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import wait_until

#: Every process that a job starts has it in its environment, whatever group it moves to.
MARK = "CRP_TEST_JOB"
DRIVER, JVM, BOTH, WORKER, EXECUTOR = "driver", "JVM", "driver and JVM", "Python worker", "executor"
#: On a machine that has other work.
PATIENCE_S = 300


class Job:
    """A running program.

    Args:
        command: its words.
        log: where its output goes.
        env: further environment variables.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._mark = uuid.uuid4().hex
        self.began = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                # A folder without modules that could hide an installed one.
                cwd=log.parent,
                env={**os.environ, **(env or {}), MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> str:
        """Wait for its end, which has to be a good one; return what it said."""
        status = self.process.wait(PATIENCE_S)
        assert status == 0, self.said[-4000:]
        self.gone()
        return self.said

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, or for the program's own end."""
        wait_until(lambda: condition() or self.process.poll() is not None, PATIENCE_S, interval_s=0.05)

    def running(self, what: str) -> list[int]:
        """Return the processes that are the driver, the JVM, both, an executor, or Spark's Python workers."""
        wanted = {DRIVER, JVM} if what == BOTH else {what}
        return [pid for pid in self.pids() if self._kind(pid) in wanted]

    def strike(self, what: str) -> bool:
        """Kill what `running` returns with SIGKILL; return whether there was any of it."""
        found = self.running(what)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def kill(self, what: str) -> bool:
        """Kill the driver, the JVM or both; return whether it was still running. Nothing of it is left then."""
        running = self.process.poll() is None
        self.strike(what)
        self.process.wait(PATIENCE_S)
        self.gone()
        return running

    def end(self) -> None:
        """Kill whatever there is of it."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def gone(self) -> None:
        """Wait until none of its processes is left: Spark's Python workers end by themselves when the JVM is gone."""
        wait_until(lambda: not self.pids(), PATIENCE_S)

    def pids(self) -> list[int]:
        wanted = f"{MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def _kind(self, pid: int) -> str:
        if pid == self.process.pid:
            return DRIVER
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if Path(f"/proc/{pid}/comm").read_bytes().strip() == b"java":
                return EXECUTOR if b"CoarseGrainedExecutorBackend" in words else JVM
            if b"\0-m\0pyspark." in words:
                return WORKER
        return ""
