"""Threads that publish whatever happens to the server, and know what it has confirmed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from celery_redis_plus.errors import NotReplicated

#: Of the task's arguments: how long it takes, in seconds.
Lengths = Callable[[random.Random], float]
RETRY = {"max_retries": 10_000, "interval_start": 0.02, "interval_step": 0.05, "interval_max": 0.2}
#: Seconds that a publisher waits when there is enough to do.
PAUSE_S = 0.01


class Confirmed(NamedTuple):
    """A task: its name, when its publish began and was confirmed (ticks), and whether a replica has it."""

    name: str
    began_at: float
    confirmed_at: float
    replicated: bool


class Publisher(threading.Thread):
    """Sends tasks until it is told to stop, or has sent `most`; each publish is retried until the server has confirmed it.

    Args:
        app: publishes; apps may share a broker, threads may share an app.
        prefix: of the tasks' names; unique among publishers.
        length: how long the next task takes.
        most: how many tasks to send; None is no limit.
        enough: tells that there is enough to do for now.
        delayed: which part of the tasks has a countdown of up to three seconds.
        prioritised: which part of the tasks has a priority above 0.
        task: the task's name.
        pause_s: after each task.
        replicating: returns an app that waits for a replica, when it shall be used.
    """

    def __init__(
        self,
        app: Any,
        prefix: str,
        *,
        length: Lengths,
        most: int | None = None,
        enough: Callable[[], bool] = lambda: False,
        delayed: float = 0.0,
        prioritised: float = 0.0,
        task: str = "chaos.run",
        pause_s: float = 0.0,
        replicating: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__(name=f"publisher-{prefix}", daemon=True)
        self.app = app
        self.sent = 0
        #: The tasks that were confirmed.
        self.confirmed: list[Confirmed] = []
        #: A task is being published, or is about to be.
        self.busy = False
        self.error: Exception | None = None
        self.stopping = threading.Event()
        self.enough = enough
        self._prefix, self._length, self._most, self._task_name = prefix, length, most, task
        self._delayed, self._prioritised = delayed, prioritised
        self._pause_s, self._replicating = pause_s, replicating
        self._random = random.Random(prefix)

    def names(self) -> list[str]:
        """Return the names of the tasks that were confirmed."""
        return [one.name for one in self.confirmed]

    def run(self) -> None:
        try:
            while not self.stopping.is_set() and self.sent != self._most:
                # Before it asks: who finds it idle, and has said that there is enough, finds it idle afterwards.
                self.busy = True
                enough = self.enough()
                if not enough:
                    self._send()
                self.busy = False
                time.sleep(PAUSE_S if enough else self._pause_s)
        except Exception as error:  # noqa: BLE001 - the test fails with it
            self.error = error

    def _send(self) -> None:
        options: dict[str, Any] = {}
        if self._random.random() < self._delayed:
            options["countdown"] = self._random.uniform(0.05, 3)
        if self._random.random() < self._prioritised:
            options["priority"] = self._random.randint(1, 9)
        name = f"{self._prefix}{self.sent}"
        began_at, replicating = time.monotonic(), self._replicating()
        try:
            (replicating or self.app).send_task(
                self._task_name, [name, self._length(self._random)], retry=True, retry_policy=RETRY, **options
            )
        except NotReplicated:
            # It is stored, and may be lost.
            pass
        else:
            self.confirmed.append(Confirmed(name, began_at, time.monotonic(), replicating is not None))
        self.sent += 1

    def finish(self, timeout_s: float = 60.0) -> None:
        """Let it end after the present task; raises what it met."""
        self.stopping.set()
        self.join(timeout_s)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise TimeoutError(f"{self.name} has been publishing one task for {timeout_s} s")
