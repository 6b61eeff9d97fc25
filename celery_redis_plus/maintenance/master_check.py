"""Has a process with consumers notice a failover although its connections still work: the old master goes on for seconds."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.connection.master_looks import LOOK_S
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection


#: Seconds after the last look at which a process looks although another of its threads did: it may have ended.
TAKE_OVER_S = 3.0


class MasterCheck(MaintenanceTask):
    """The maintenance task that asks the Sentinels once a second; without Sentinels it never runs.

    Of several brokers that the same servers know of, the maintenance of one asks for all. The others hear of a move.
    """

    def __init__(self, commands: CommandConnection) -> None:
        """Check where `commands` leads to. Their common finder wakes event loops, and this thread, when the master moves."""
        self._commands = commands
        self._finder = commands.connector.finder
        #: Not before, on `clock`, in seconds; and when somebody is to be asked after this one has asked, on the monotonic clock.
        self._not_before = self._after_own = 0.0

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        finder, commands = self._finder, self._commands
        if finder is None:
            return math.inf
        if commands.connected and finder.has_moved(*commands.peer):
            return 0.0
        next_look_at = finder.next_look_at
        patience_s = 0.0 if next_look_at == self._after_own else TAKE_OVER_S - LOOK_S
        return max(self._not_before, clock.now_s() + next_look_at - time.monotonic() + patience_s)

    def run(self) -> None:
        """Ask. Raises ServerUnreachable where the Sentinels name another master than before."""
        finder = self._finder
        before = None if finder is None else finder.next_look_at
        # Before: what the connection raises is tried again by the thread.
        self._not_before = clock.now_s() + LOOK_S
        self._commands.connect()
        if finder is not None and finder.next_look_at != before:
            self._after_own = finder.next_look_at
