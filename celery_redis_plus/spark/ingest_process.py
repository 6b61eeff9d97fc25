"""Keeps `spark ingest` running as a process of its own: starts it again when it has ended, and ends it in time.

Spark's Java process may be killed at any moment, by the kernel for want of memory for example. A process that has lost it cannot
start another one; one that never had it can.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.spark.query_runner import LONGEST_PAUSE_S, GrowingPause

#: Seconds that it gets to end by itself.
PATIENCE_S = 7.0


class IngestProcess:
    """One `spark ingest` at a time.

    Args:
        command: its words. It has to end when its standard input does: so it does not outlive this process.
        env: its environment.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = command
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._pause = GrowingPause(calm_s=2 * LONGEST_PAUSE_S)
        self._due = 0.0
        self.starts = 0
        self._lock = lock_of(self)
        self._over = False

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def keep_up(self) -> str:
        """Start it if it does not run and its pause is over; return a sentence if it has ended, else ''. Not behind `end`."""
        with self._lock:
            return "" if self._over or self.running else self._start()

    def _start(self) -> str:
        now, said = time.monotonic(), ""
        if self._process is not None:
            status = self._process.wait()
            self._end_group()
            self._process = None
            pause_s = self._pause.after(now - self._began)
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            said = f"ingest {how}; it starts again in {pause_s:.0f} s"
            self._due = now + pause_s
        if now >= self._due:
            self._process = subprocess.Popen(self._command, env=self._env, stdin=subprocess.PIPE, start_new_session=True)
            self._began = now
            self.starts += 1
        return said

    def end(self) -> None:
        """End it, for good: what it had begun, the next one does again. From any thread."""
        with self._lock:
            self._over = True
            self._end()

    def _end(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S)
        self._end_group()
        self._process.wait()
        self._process = None

    def _end_group(self) -> None:
        """End what is left of it, with its Java process and Spark's Python workers."""
        assert self._process is not None  # noqa: S101 - it was started
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
