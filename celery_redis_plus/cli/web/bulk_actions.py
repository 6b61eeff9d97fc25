"""Actions on many messages: each goes on in a thread of its own while pages show how far it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_redis_plus.broker.queues.audit import Action
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

#: Treats a page of messages; returns how many it did, and why the others stay.
Treat = Callable[[Any], tuple[int, "Sequence[str]"]]


class BulkAction:
    """One action, a page of messages at a time: a script call or some, so that it may end between any two pages.

    Args:
        name: what it is called: `replay`.
        done_as: what the messages are after it: `back to work`.
        total: how many messages are to be looked at.
        pages: how many were looked at, and those of them that are meant, again and again.
        treat: acts on the latter.
        audited: notes it in the audit log, while it is entered.

    Attributes:
        looked_at: how many were. done: how many it treated. refused: how many stay. reason: why the first of them does.
        error: why it ended early; None where it did not.
    """

    def __init__(
        self, name: str, done_as: str, total: int, pages: Iterable[tuple[int, Any]], treat: Treat, *,
        audited: AbstractContextManager[Action] | None = None,
    ) -> None:  # fmt: skip
        self._audited = nullcontext(Action()) if audited is None else audited
        self.name = name
        self.done_as = done_as
        self.total = total
        self._pages = pages
        self._treat = treat
        self._stopped = threading.Event()
        # Whoever asked for it acts in its thread, too.
        run = partial(copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name=f"celery-redis-plus-{name}", daemon=True)
        self.looked_at, self.done, self.refused = 0, 0, 0
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

    def note_progress(self, looked_at: int) -> None:
        """Count messages within a page."""
        self.looked_at += looked_at

    def stop(self) -> None:
        """End behind the present page, and wait for that."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._audited as action:
                for looked_at, those in self._pages:
                    if self._stopped.is_set():
                        return
                    done, reasons = self._treat(those)
                    self.done += done
                    action.count = self.done
                    self.refused += len(reasons)
                    self.reason = self.reason or next(iter(reasons), None)
                    self.looked_at += looked_at
        except (CeleryRedisPlusError, RedisError, OSError) as error:
            self.error = str(error)
            logger.warning("the %s ended after %d of %d messages: %s", self.name, self.looked_at, self.total, error)


class BulkActions:
    """The last action of each page of a queue; thread-safe. A key is the page's path and the queue."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        self._of: dict[tuple[str, str], BulkAction] = {}

    def of(self, page: str, queue: str) -> BulkAction | None:
        """Return the last one; None: there was none."""
        return self._of.get((page, queue))

    def start(self, page: str, queue: str, action: BulkAction) -> bool:
        """Begin one; return False where there is one already that goes on."""
        with self._lock:
            last = self._of.get((page, queue))
            if last is not None and last.is_running:
                return False
            self._of[page, queue] = action
            action.start()
            return True

    def stop(self, page: str, queue: str) -> None:
        """End the one of a page, if there is one."""
        action = self._of.get((page, queue))
        if action is not None:
            action.stop()

    def close(self) -> None:
        """End all."""
        for page, queue in list(self._of):
            self.stop(page, queue)
