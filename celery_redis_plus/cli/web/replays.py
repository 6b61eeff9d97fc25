"""Replays of many dead letters: each goes on in a thread of its own while pages show how far it is."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from celery_redis_plus.broker.dead_letters.search import DeadLetterSearch
    from celery_redis_plus.cli.broker_admin import BrokerAdmin

logger = logging.getLogger(__name__)


class Replay:
    """One replay, a page of dead letters at a time; a script call each, so that it may end between any two.

    Attributes:
        total: how many dead letters are to be looked at. looked_at: how many were.
        replayed: how many are back to work. refused: how many stay. reason: why the first of them does.
        error: why it ended early; None where it did not.
    """

    def __init__(self, admin: BrokerAdmin, search: DeadLetterSearch) -> None:
        self._admin = admin
        self._search = search
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-redis-plus-replay", daemon=True)
        self.total = len(search.tags)
        self.looked_at, self.replayed, self.refused = 0, 0, 0
        self.reason: str | None = None
        self.error: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    @property
    def was_stopped(self) -> bool:
        """Whether it was told to end."""
        return self._stopped.is_set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End behind the present page, and wait for that."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for looked_at, letters in self._search.pages():
                if self._stopped.is_set():
                    return
                for outcome in self._admin.replay_page(letters):
                    if isinstance(outcome, Exception):
                        self.refused += 1
                        self.reason = self.reason or str(outcome)
                    else:
                        self.replayed += outcome
                self.looked_at += looked_at
        except (CeleryRedisPlusError, RedisError, OSError) as error:
            self.error = str(error)
            logger.warning("a replay of dead letters ended after %d of %d: %s", self.looked_at, self.total, error)


class Replays:
    """The last replay of each queue; thread-safe."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        self._of: dict[str, Replay] = {}

    def of(self, queue: str) -> Replay | None:
        """Return the queue's last one; None: there was none."""
        return self._of.get(queue)

    def start(self, queue: str, admin: BrokerAdmin, search: DeadLetterSearch) -> bool:
        """Begin one; return False where the queue has one already that goes on."""
        with self._lock:
            last = self._of.get(queue)
            if last is not None and last.is_running:
                return False
            self._of[queue] = replay = Replay(admin, search)
            replay.start()
            return True

    def stop(self, queue: str) -> None:
        """End the queue's, if there is one."""
        replay = self._of.get(queue)
        if replay is not None:
            replay.stop()

    def close(self) -> None:
        """End all."""
        for queue in list(self._of):
            self.stop(queue)
