"""A real `celery worker` process of the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: How many lines of its log are shown when something goes wrong.
LOG_LINES = 60


class WorkerProcess:
    """`celery worker` in a process group of its own, so that it can be killed with all its children and nothing else.

    Args:
        name: its name, which its records have too.
        app: the module with its app.
        log_level: of its log.
        queues: what it consumes.
        folder: where it runs; a user's folder could hold a `celery.py`.
        environment: all of its environment variables.
        on_line: called, in a thread, with each line of its log.
    """

    def __init__(
        self,
        name: str,
        *,
        app: str,
        log_level: str,
        queues: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self._on_line = on_line
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", app, "--no-color", "worker"),
                *("--pool", "prefork", "--concurrency", "1", "--hostname", f"{name}@demo", "--loglevel", log_level),
                *("--queues", ",".join(queues)),
            ],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, name=f"log of {name}", daemon=True)
        self._reader.start()

    @property
    def group(self) -> int:
        """The process group, which is the main process's id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the main process lives."""
        return self._process.poll() is None

    def freeze(self) -> None:
        """Halt it with all its children."""
        os.killpg(self.group, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.killpg(self.group, signal.SIGCONT)

    def kill(self) -> None:
        """End it and its children with SIGKILL, as the kernel does when memory runs out."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=2)

    def stop(self, timeout_s: float) -> int | None:
        """Ask for a warm shutdown; return the exit status, None where it had to be killed."""
        self._process.terminate()
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        self.kill()
        return status

    def _read_log(self) -> None:
        # Only the end of every process that writes to it closes the pipe.
        for line in self._process.stdout or ():
            text = line.rstrip()
            self.log.append(text)
            self._on_line(self.name, text)
