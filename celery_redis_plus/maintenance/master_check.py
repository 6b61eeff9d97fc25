"""Has a process with consumers notice a failover although its connections still work: the old master goes on for seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.connection.master_looks import LOOK_S

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection


class MasterCheck:
    """The maintenance task that asks the Sentinels once a second; without Sentinels it never runs."""

    def __init__(self, commands: CommandConnection) -> None:
        """Check where `commands` leads to. Event loops are woken by the finder that its connector shares with theirs."""
        self._commands = commands
        self._next_run_at = 0.0 if commands.connector.finder is not None else math.inf

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return self._next_run_at

    def run(self) -> None:
        """Ask. Raises ServerUnreachable where the Sentinels name another master than before."""
        self._next_run_at = clock.now_s() + LOOK_S
        self._commands.connect()
