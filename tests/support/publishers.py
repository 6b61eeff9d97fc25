"""Publishers that run beside a test: threads with a connection of their own, and processes that can be killed."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Self

import kombu

from tests.support.fork_server import fork_server

if TYPE_CHECKING:
    import pytest


def wake_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let publishers of this process that wait for room look when they are woken, and not by themselves meanwhile."""
    from celery_redis_plus.broker.flow_control import controller

    monkeypatch.setattr(controller, "LONG_WAIT_S", 60.0)
    monkeypatch.setattr(controller, "WAITER_CHECK_S", 60.0)


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
    """`python -m tests.support.publisher_process URL QUEUE COUNT NAME`: prints a line for each outcome.

    With an `exchange`, `queue` is the routing key.
    """

    def __init__(self, url: str, queue: str, count: int, name: str, timeout_s: float = 30.0, exchange: str = "") -> None:
        self.name = name
        self._output = TemporaryFile()  # noqa: SIM115 - open for as long as the process writes
        arguments = ["tests.support.publisher_process", url, queue, str(count), name, str(timeout_s), exchange]
        self._process = fork_server().start(arguments, os.environ, self._output)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def outcome(self, timeout_s: float = 60.0) -> dict[str, int]:
        """Wait for the end; return how many bodies were published, refused, and the CPU time in ms."""
        status = self._process.wait(timeout_s)
        self._output.seek(0)
        output = self._output.read().decode()
        assert status == 0, output[-3000:]
        # Beside what it prints, its log has warnings on a busy machine.
        return {key: int(value) for key, value in re.findall(r"^(\w+) (\d+)$", output, re.MULTILINE)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()
        self._output.close()
