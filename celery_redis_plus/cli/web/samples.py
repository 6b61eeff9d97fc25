"""What the queues were like in the last minutes, and in the last day: a thread looks again and again.

Pages draw lines and rates of it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

from redis.exceptions import RedisError

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.queues.overview import QueueOverview

logger = logging.getLogger(__name__)

#: Seconds between two looks, and looks that are kept: ten minutes.
INTERVAL_S: Final = 5.0
KEPT: Final = 120
#: The same for the history of a day.
DAY_INTERVAL_S: Final = 600.0
KEPT_OF_DAY: Final = 144
#: Seconds for which a look tells the order of the queues, and their sums.
LATEST_S: Final = 15.0
#: Queues that are looked at, in the order of their names: some 50 MB of samples.
MAX_QUEUES: Final = 1_000
#: Part of the time that a look may take, however many queues there are.
MAX_LOAD: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """One queue at one look; `at` is in seconds of the monotonic clock, the rest as in `QueueOverview`."""

    at: float
    ready: int
    dead: int
    published: int
    delivered: int


class Samples:
    """The samples of each queue, the oldest first; thread-safe."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        self._of: dict[str, deque[Sample]] = {}
        self._day: dict[str, deque[Sample]] = {}
        self._day_at = -DAY_INTERVAL_S
        self._latest: Sequence[QueueOverview] = ()
        self._latest_at = -math.inf
        #: Whether the last look found the broker away; None: there was none yet.
        self.is_away: bool | None = None

    def add(self, overviews: Sequence[QueueOverview], at: float) -> None:
        """Note how queues stand; forget those that are not among them."""
        with self._lock:
            self._of = {one.queue: self._of.get(one.queue, deque(maxlen=KEPT)) for one in overviews}
            for one in overviews:
                self._of[one.queue].append(Sample(at, one.ready, one.dead, one.published, one.delivered))
            self._latest, self._latest_at, self.is_away = overviews, at, False
            if at >= self._day_at + DAY_INTERVAL_S:
                self._day_at = at
                self._day = {one.queue: self._day.get(one.queue, deque(maxlen=KEPT_OF_DAY)) for one in overviews}
                for queue, samples in self._day.items():
                    samples.append(self._of[queue][-1])

    def of(self, queue: str) -> list[Sample]:
        """Return what there is of a queue."""
        with self._lock:
            return list(self._of.get(queue, ()))

    def latest(self) -> dict[str, QueueOverview]:
        """Return how the queues stood at the last look; none where that was long ago."""
        with self._lock:
            return {one.queue: one for one in self._latest} if self._latest_at > time.monotonic() - LATEST_S else {}

    def of_day(self, queue: str) -> list[Sample]:
        """Return what there is of the last 24 hours, a sample each ten minutes."""
        with self._lock:
            return list(self._day.get(queue, ()))


def rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return messages published and delivered a second, from sample to sample; none where the queue was declared again."""
    return [
        ((now.published - before.published) / (now.at - before.at), (now.delivered - before.delivered) / (now.at - before.at))
        for before, now in pairwise(samples)
        if now.at > before.at and now.published >= before.published and now.delivered >= before.delivered
    ]


class Sampler:
    """The thread that looks; use it as a context manager.

    Args:
        samples: where they go.
        admin: gives the connection to ask; asked again at each look, since it may raise.
        interval_s: seconds between two looks.
    """

    def __init__(self, samples: Samples, admin: Callable[[], BrokerAdmin], interval_s: float = INTERVAL_S) -> None:
        self._samples = samples
        self._admin = admin
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-redis-plus-samples", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        took_s, is_away = 0.0, False
        while not self._ended.wait(max(self._interval_s - took_s, took_s / MAX_LOAD) if took_s else 0):
            begun = time.monotonic()
            try:
                self._samples.add(self._overviews(), begun)
                if is_away:
                    logger.warning("the broker answers again")
                is_away = False
            except (CeleryRedisPlusError, RedisError, OSError) as error:
                # The pages say so each time.
                if not is_away:
                    logger.warning("the broker cannot be asked: %s; it is tried again", error)
                is_away = self._samples.is_away = True
            took_s = max(time.monotonic() - begun, 0.001)

    def _overviews(self) -> list[QueueOverview]:
        admin = self._admin()
        found = []
        for overview in admin.overviews_of(admin.queues(internal=False)[:MAX_QUEUES]):
            found.append(overview)
            if self._ended.is_set():
                break
        return found
