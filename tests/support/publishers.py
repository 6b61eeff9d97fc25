"""Publishers that run beside a test: threads with a connection of their own, and processes that can be killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import kombu

ROOT = Path(__file__).parents[2]


class PublishingThread:
    """Publishes bodies into a queue, one after the other, over a connection of its own; use it as a context manager."""

    def __init__(self, url: str, queue: str, bodies: Iterable[Any], **options: Any) -> None:
        self._arguments = (url, queue, list(bodies), options)
        #: What was published, and what each failed one raised.
        self.done: list[Any] = []
        self.errors: list[Exception] = []
        #: When the last one ended, on the monotonic clock.
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        url, queue, bodies, options = self._arguments
        with kombu.Connection(url, transport_options=options) as connection:
            producer = kombu.Producer(connection.channel())
            for body in bodies:
                try:
                    producer.publish(body, routing_key=queue)
                except Exception as error:  # noqa: BLE001 - the test looks at it
                    self.errors.append(error)
                else:
                    self.done.append(body)
                self.ended_at = time.monotonic()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float = 20.0) -> None:
        self._thread.join(timeout_s)
        assert not self.running, "still publishing"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(40)


class PublishingProcess:
    """`python -m tests.support.publisher_process URL QUEUE COUNT NAME`: prints a line for each outcome."""

    def __init__(self, url: str, queue: str, count: int, name: str, timeout_s: float = 30.0) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.publisher_process", url, queue, str(count), name, str(timeout_s)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def outcome(self, timeout_s: float = 60.0) -> dict[str, int]:
        """Wait for the end; return how many bodies were published, refused, and the CPU time in ms."""
        out, err = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0, err[-3000:]
        return {key: int(value) for key, value in (line.split() for line in out.splitlines())}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
