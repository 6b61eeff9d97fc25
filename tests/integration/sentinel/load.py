"""A publisher under load, and what became of its tasks."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from kombu.exceptions import OperationalError

from celery_redis_plus.errors import NotReplicated
from tests.integration.sentinel.app import RAN
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis
    from celery import Celery

    from tests.support.workers import Worker

logger = logging.getLogger(__name__)


class Load:
    """Publishes numbers from threads of its own, `rate` a second in all if the machine carries them; a context manager."""

    def __init__(self, app: Celery, *, rate: float = 200.0, publishers: int = 1, first: int = 0) -> None:
        self._app = app
        self._period_s = publishers / rate
        self._numbers = itertools.count(first + 1)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._publish) for _ in range(publishers)]
        self._last = time.monotonic()
        #: Numbers of which the publisher was told that they are stored, and on as many replicas as it has asked for.
        self.confirmed: list[int] = []
        #: Of each of them: when its publish began, and when it was confirmed, on the monotonic clock.
        self.times: dict[int, tuple[float, float]] = {}
        #: Numbers that are stored on too few replicas, and those of which nothing is known.
        self.unreplicated: list[int] = []
        self.unknown: list[int] = []
        #: The longest time between two confirmed publishes.
        self.longest_gap_s = 0.0
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _publish(self) -> None:
        due = time.monotonic()
        try:
            while not self._over.is_set():
                self._publish_one(next(self._numbers))
                # What was not published during an outage is not made up for.
                due = max(due + self._period_s, time.monotonic() - self._period_s)
                time.sleep(max(0.0, due - time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.failure = error

    def _publish_one(self, number: int) -> None:
        began = time.monotonic()
        try:
            self._app.send_task("sentinel.note", (number,))
        except NotReplicated:
            self.unreplicated.append(number)
        except OperationalError:
            self.unknown.append(number)
        else:
            with self._lock:
                self.confirmed.append(number)
                now = time.monotonic()
                self.times[number] = began, now
                self.longest_gap_s, self._last = max(self.longest_gap_s, now - self._last), now


class Ran:
    """The tasks that ran, as they have noted it."""

    def __init__(self, journal: redis.Redis) -> None:
        self._journal = journal

    def times(self) -> dict[int, float]:
        """Return when each number ran first, on the wall clock, in seconds."""
        found: dict[int, float] = {}
        entries: Any = self._journal.lrange(RAN, 0, -1)
        for entry in entries:
            number, at = entry.decode().split()
            found.setdefault(int(number), float(at))
        return found

    def repeated(self) -> Counter[int]:
        """Return the numbers that ran more than once, and how often."""
        entries: Any = self._journal.lrange(RAN, 0, -1)
        counted = Counter(int(entry.split()[0]) for entry in entries)
        return Counter({number: count for number, count in counted.items() if count > 1})


def more(load: Load, worker: Worker, count: int = 50, *, timeout_s: float = 30) -> None:
    """Wait until `count` more publishes are confirmed."""
    before = len(load.confirmed)
    wait_until(lambda: len(load.confirmed) > before + count, timeout_s, lambda: (load.failure, worker.tail()))


def check(load: Load, ran: Ran, worker: Worker) -> None:
    """See that nothing confirmed is lost."""
    assert load.failure is None

    def lost() -> set[int]:
        return set(load.confirmed) - set(ran.times())

    wait_until(lambda: not lost(), 60, lambda: f"{len(lost())} of {len(load.confirmed)} lost\n{worker.tail()}", interval_s=0.1)
    logger.info(
        "confirmed %d, on too few replicas %d, unknown %d, repeated %d; longest pause of the publisher %.2f s",
        len(load.confirmed), len(load.unreplicated), len(load.unknown), len(ran.repeated()), load.longest_gap_s,
    )  # fmt: skip
