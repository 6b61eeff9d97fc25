"""Finds messages that kombu's own Redis transport has stored for the queues consumed here, and that no worker reads.

With an unchanged `redis://` URL, one process without `configure_app` publishes into kombu's lists in the same database, without
an error anywhere. The consumers of its queues are the ones who can notice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus import clock
from celery_redis_plus.keys import KOMBU_PRIORITY_STEPS
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

logger = logging.getLogger(__name__)

#: Seconds between two checks; a new queue is checked when its consumer starts.
CONVERSION_CHECK_S = 300.0
#: Queues in one check, which is one command for all of them. Four more for each that has messages there.
QUEUES_A_CHECK = 32


class UnconvertedProcesses(MaintenanceTask):
    """The maintenance task that warns, once for each queue, that kombu's lists of it have messages."""

    def __init__(self, commands: CommandConnection, keys: Keys, consumed: ConsumedQueues) -> None:
        """Look over `commands`, for the lasting queues in `consumed`."""
        self._commands = commands
        self._keys = keys
        self._consumed = consumed
        self._version = -1
        self._checked: set[str] = set()
        self._warned: set[str] = set()

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return self._due_at if self._version == self._consumed.version or self._due_at == math.inf else 0.0

    def run(self) -> None:
        """Look at the queues that are due. Raises as `CommandConnection.call` does where the server is unreachable."""
        version = self._consumed.version
        now = clock.now_s()
        if self._due_at <= now:
            self._due_at = now + CONVERSION_CHECK_S
            self._checked.clear()
        lasting = [queue.name for queue in self._consumed.all() if queue.ttl_ms is None]
        due = [name for name in lasting if name not in self._checked and name not in self._warned]
        try:
            self._checked.update(self._check(due[:QUEUES_A_CHECK]))
        except NoPermissionError as error:
            logger.debug("kombu's keys cannot be looked at: %s", error)
            self._due_at = math.inf
        # What is left is due with the next round.
        self._version = version if self._checked.issuperset(due) else -1

    def _check(self, queues: list[str]) -> Iterator[str]:
        """Look at queues, and yield those that were looked at: those with messages for one slice only, since heartbeats wait."""
        lists = [key for name in queues for key in self._lists_of(name)]
        # An empty list has no key.
        if not lists or not self._commands.command("EXISTS", *lists):
            yield from queues
            return
        slice_ = Slice()
        for name in queues:
            self._check_queue(name)
            yield name
            if slice_.over:
                return

    def _check_queue(self, queue: str) -> None:
        lengths = {key: length for key in self._lists_of(queue) if (length := self._count("LLEN", key))}
        if not lengths:
            return
        self._warned.add(queue)
        logger.warning(
            "queue %r: %d message(s) lie in %s, where kombu's own Redis transport keeps them, unread (bindings of "
            "kombu: %d). Some process publishes without celery-redis-plus: give its broker URL the scheme redisplus://, or call "
            "configure_app. `celery-redis-plus migrate` moves the messages: docs/migration.md",
            queue,
            sum(lengths.values()),
            ", ".join(f"list {key.decode(errors='backslashreplace')!r}" for key in lengths),
            self._count("SCARD", self._keys.kombu.binding(queue)),
            extra={"queue": queue},
        )

    def _lists_of(self, queue: str) -> list[bytes]:
        """Return the lists of kombu's default steps: every worker looks, so it must be cheap. `doctor` looks at all."""
        return [self._keys.kombu.list_of(queue, step) for step in KOMBU_PRIORITY_STEPS]

    def _count(self, command: str, key: bytes) -> int:
        try:
            return int(self._commands.command(command, key))
        except NoPermissionError:
            raise
        except ResponseError:
            # A key of another type is none of kombu's.
            return 0
