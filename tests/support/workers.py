"""Runs real `celery worker` processes, and ends exactly those."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.fork_server import ROOT, ForkedProcess, fork_server, python_path
from tests.support.judge import records
from tests.support.judge.recorder import note
from tests.support.waiting import wait_until

READY = re.compile(r" ready\.\s*$", re.MULTILINE)

#: The pools of which a worker may have loaded Celery before it starts: the others patch the standard library first.
FORKED_POOLS = ("prefork", "solo", "threads")

QUIET = ("--without-mingle", "--without-gossip")

_numbers = itertools.count(1)


class Worker:
    """One `celery -A APP worker` process in a process group of its own; use it as a context manager.

    Leaving the context stops it warmly, and fails the test if it had to be killed (unless the test failed).

    Args:
        app: the module that holds the app, as for `celery -A`.
        log_directory: where the worker's log is written (`tmp_path`).
        broker: given to the app as `CRP_TEST_BROKER`, which `tests.support.apps` reads.
        pool: prefork, threads, solo, gevent or eventlet.
        queues: the queues to consume; none means the app's default.
        options: further options of `celery worker`.
        quiet: whether it does without looking for other workers, which takes Celery a second, and without listening to them.
        env: further environment variables; None as a value removes one.
        forked: whether the fork server may start it; where it cannot, and with false, `python -m celery` is executed.
    """

    def __init__(
        self,
        app: str,
        log_directory: Path,
        *,
        broker: str = "",
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        options: Sequence[str] = (),
        quiet: bool = True,
        env: Mapping[str, str | None] | None = None,
        name: str = "",
        cwd: Path = ROOT,
        forked: bool = True,
    ) -> None:
        self.name = name or f"worker{next(_numbers)}-{os.getpid()}"
        self.log_path = log_directory / f"{self.name}.log"
        self._cwd = cwd
        self._forked = forked and pool in FORKED_POOLS and cwd == ROOT and "PYTHONPATH" not in (env or {})
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._asked_to_stop = False
        self._ready_seen = 0
        self._command = [
            *(sys.executable, "-m", "celery", "-A", app, "worker"),
            *("--pool", pool, "--concurrency", str(concurrency), "--hostname", f"{self.name}@%h"),
            *("--loglevel", "INFO"),
            *(QUIET if quiet else ()),
            *(("--queues", ",".join(queues)) if queues else ()),
            *options,
        ]
        changes = {
            "PYTHONUNBUFFERED": "1",
            "C_FORCE_ROOT": "1",
            **({"CRP_TEST_BROKER": broker} if broker else {}),
            **(env or {}),
        }
        self._env = {k: v for k, v in {**os.environ, **changes}.items() if v is not None}
        self._env["PYTHONPATH"] = python_path(self._env)

    # ---- life

    def start(self, *, wait: bool = True, timeout_s: float = 60.0) -> Self:
        """Start the worker; with `wait`, return when it consumes."""
        if self.running:
            raise RuntimeError(f"{self.name} runs already")
        self._ready_seen = self._ready_count()
        self._asked_to_stop = False
        with self.log_path.open("ab") as log:
            if self._forked:
                self._process = fork_server().start(self._command[2:], self._env, log)
            else:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._cwd,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        if wait:
            try:
                self.wait_until_ready(timeout_s)
            except BaseException:
                # Nobody else would: a context that was not entered is not left.
                self.kill()
                raise
        return self

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Return when the worker has said that it is ready.

        Raises:
            RuntimeError: it ended before that; the error holds its log.
            TimeoutError: it said nothing.
        """

        def is_ready() -> bool:
            if self._ready_count() > self._ready_seen:
                return True
            if not self.running:
                raise RuntimeError(f"{self.name} ended before it was ready:\n{self.tail()}")
            return False

        wait_until(is_ready, timeout_s, lambda: f"{self.name} ready; its log:\n{self.tail()}", interval_s=0.05)

    def stop(self, timeout_s: float = 60.0) -> int:
        """Ask for a warm shutdown, wait for it, and return the exit status; a worker that has ended stays so.

        Raises:
            TimeoutError: it did not end in time, and was killed; the error holds its log.
        """
        if self._process is None:
            return 0
        self.ask_to_stop()
        try:
            return self.wait(timeout_s)
        except TimeoutError:
            self.kill()
            raise

    def ask_to_stop(self) -> None:
        """Begin a warm shutdown, once: Celery takes a second signal for a wish to end sooner."""
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self.signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for the worker's own end and return the exit status.

        Raises:
            TimeoutError: it runs still.
        """
        process = self._started_process()
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} still runs after {timeout_s} s:\n{self.tail()}") from None
        note(records.GONE, process=self.pid)
        self._end_the_group()
        return status

    def kill(self) -> None:
        """End the worker and its children with SIGKILL, as the kernel's out-of-memory killer would."""
        if self._process is not None:
            if self.running:
                note(records.KILLED, process=self.pid)
            self._end_the_group()
            self._process.wait()

    def kill_parent_only(self) -> None:
        """End the main process with SIGKILL; its pool's processes find out by themselves."""
        process = self._started_process()
        note(records.KILLED, process=self.pid)
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """Halt the whole worker with SIGSTOP."""
        note(records.SILENT, process=self.pid)
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen worker go on."""
        os.killpg(self.pid, signal.SIGCONT)
        note(records.HEARD, process=self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the main process, if it lives."""
        if self.running:
            if number in {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}:
                note(records.STOPPED, process=self.pid)
            self._started_process().send_signal(number)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()
            if error is not None:
                error.add_note(f"--- end of {self.name}'s log ---\n{self.tail()}")

    # ---- use

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The main process's id, which is also the group's."""
        return self._started_process().pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    # ---- helpers

    def _started_process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process

    def _ready_count(self) -> int:
        return len(READY.findall(self.log()))

    def _end_the_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._started_process().pid, signal.SIGKILL)
