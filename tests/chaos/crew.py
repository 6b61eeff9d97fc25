"""The workers of a storm: each behind a proxy of its own, each life of each worker on record."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.judge import records
from tests.support.judge.lives import Life
from tests.support.judge.recorder import note

if TYPE_CHECKING:
    from tests.chaos.servers import SetClock
    from tests.support.proxy import Proxy
    from tests.support.workers import Worker

#: Seconds that a warm shutdown may take: a running task, and billiard's 30 s for unread results besides.
STOP_S = 120.0
#: Seconds that a start may take: with a load of 30 on two processors it was 60.
READY_S = 180.0


class Member:
    """One worker through all its lives. A fault that takes its time keeps others away by `lock`.

    A worker may end only when `kill` or `stop` asks for it: any other end is a defect, even one with status 0.
    """

    def __init__(self, worker: Worker, proxy: Proxy, lives: list[Life], clock: SetClock | None = None) -> None:
        self.worker = worker
        #: None: it cannot be set.
        self.clock = clock
        self.proxy = proxy
        self.lock = threading.Lock()
        self._lives = lives
        self._must_run = False

    @property
    def life(self) -> Life:
        return next(life for life in reversed(self._lives) if life.name == self.worker.name)

    def start(self) -> None:
        self.worker.start(wait=False)
        self._lives.append(Life(self.worker.name, self.worker.pid))
        self._must_run = True

    def kill(self, *, parent_only: bool = False) -> None:
        """Kill it, with or without its children. Raises AssertionError where it had ended by itself."""
        self._about_to_end()
        self.life.killed_at = time.monotonic()
        if parent_only:
            self.worker.kill_parent_only()
        else:
            self.worker.kill()

    def stop(self) -> int:
        """Stop it warmly, and return its status. Raises AssertionError where it had ended by itself."""
        self.ask_to_stop()
        return self.worker.wait(STOP_S)

    def ask_to_stop(self) -> None:
        """Begin a warm shutdown. Raises AssertionError where it had ended by itself."""
        self._about_to_end()
        self.life.stopped_at = time.monotonic()
        self.worker.signal(signal.SIGTERM)

    def ended_by_itself(self) -> bool:
        """Return whether it has ended though neither `kill` nor `stop` was called. For any thread, with or without `lock`."""
        # In this order: another thread that stops it clears the flag first, and one that starts it sets the flag last.
        return not self.worker.running and self._must_run and not self.worker.running

    def obituary(self) -> str:
        return f"{self.life} ended by itself; the end of its log:\n{self.worker.tail(60)}"

    def _about_to_end(self) -> None:
        if self.ended_by_itself():
            raise AssertionError(self.obituary())
        self._must_run = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Note that it gives no sign of life within the block."""
        since, life = time.monotonic(), self.life
        note(records.SILENT, process=life.worker)
        try:
            yield
        finally:
            note(records.HEARD, process=life.worker)
            life.silent.append((since, time.monotonic()))


class Crew:
    """All workers."""

    def __init__(
        self,
        make: Callable[[str, SetClock | None], Worker],
        proxies: Sequence[Proxy],
        clocks: Sequence[SetClock | None] | None = None,
    ) -> None:
        """Prepare a worker, `make(url, clock)`, behind each proxy."""
        self.lives: list[Life] = []
        clocks = clocks or [None] * len(proxies)
        self.members = [
            Member(make(proxy.url(), clock), proxy, self.lives, clock) for proxy, clock in zip(proxies, clocks, strict=True)
        ]

    def start(self) -> None:
        """Start all, and wait for none."""
        for member in self.members:
            member.start()

    @contextmanager
    def one(self, chooser: random.Random) -> Iterator[Member | None]:
        """Give one that no other fault has; None where all are taken."""
        for member in chooser.sample(self.members, len(self.members)):
            if member.lock.acquire(blocking=False):
                try:
                    yield member
                finally:
                    member.lock.release()
                return
        yield None

    def ended_by_themselves(self) -> list[str]:
        """Return the ends of the logs of workers that ended though no fault ended them, those of a fault under way included."""
        return [member.obituary() for member in self.members if member.ended_by_itself()]

    def stop(self) -> list[int]:
        """Stop all warmly, and return their statuses. Raises AssertionError where one had ended by itself."""
        for member in self.members:
            # A worker that has not installed its handlers yet would simply die of the signal.
            member.worker.wait_until_ready(READY_S)
        for member in self.members:
            member.ask_to_stop()
        # Not `stop`, which would signal again: to Celery that means cold.
        return [member.worker.wait(STOP_S) for member in self.members]
