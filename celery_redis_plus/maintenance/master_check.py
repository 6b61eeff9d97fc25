"""Has a process with consumers notice a failover although its connections still work: the old master goes on for seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.connection.master_looks import LOOK_S

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection


#: Seconds after which a process looks although another of its threads does: it may have ended.
TAKE_OVER_S = 3.0


class MasterCheck:
    """The maintenance task that asks the Sentinels once a second; without Sentinels it never runs.

    Of several brokers that the same servers know of, the maintenance of one asks for all. The others hear of a move.
    """

    def __init__(self, commands: CommandConnection) -> None:
        """Check where `commands` leads to. Their common finder wakes event loops, and this thread, when the master moves."""
        self._commands = commands
        self._finder = commands.connector.finder
        self._next_run_at = 0.0 if self._finder is not None else math.inf

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        finder, commands = self._finder, self._commands
        if finder is not None and commands.connected and finder.has_moved(*commands.peer):
            return 0.0
        return self._next_run_at

    def run(self) -> None:
        """Ask. Raises ServerUnreachable where the Sentinels name another master than before."""
        before = None if self._finder is None else self._finder.next_look_at
        # Before: what the connection raises is tried again by the thread.
        self._next_run_at = clock.now_s() + LOOK_S
        self._commands.connect()
        if self._finder is not None and self._finder.next_look_at == before:
            self._next_run_at = clock.now_s() + TAKE_OVER_S
