"""Waits for work: one blocked BZMPOP over the wake-ups of a consumer's queues and a wake-up of its own.

A wake-up holds no message: a process that dies between a wake-up and its claim has taken nothing. Of many clients
blocked on one wake-up the server wakes the one that has waited longest, and only that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redis_plus.errors import ServerTimeout
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.blocking_connection import BlockingConnection
    from celery_redis_plus.connection.command_connection import CommandConnection

WAKE_TTL_MS = 60_000
#: TTL of a wakeup that is passed on: its queue may have been deleted since. The sweep sends a wakeup again for ready messages.
FORWARDED_WAKEUP_MS = 60_000


class WakeupWaiter:
    """One client's blocked call."""

    def __init__(
        self, blocking: BlockingConnection, commands: CommandConnection, *, wake: bytes, polling_interval_s: float
    ) -> None:
        """Block over `blocking`, wake ourselves over `commands` by the key `wake`, at the latest after `polling_interval_s`."""
        self._blocking = blocking
        self._commands = commands
        self._wake = wake
        self._interval_s = polling_interval_s
        self._wakeups: tuple[bytes, ...] = ()
        #: The overdue call was woken.
        self._asked = False

    @property
    def waiting(self) -> tuple[bytes, ...]:
        """The wake-ups that the outstanding call waits for; empty without one."""
        return self._wakeups

    def start_wait(self, wakeups: Sequence[bytes]) -> None:
        """Send the blocking call. Raises as `BlockingConnection.start` does."""
        wakeups = tuple(wakeups)
        self._blocking.start("BZMPOP", self._interval_s, len(wakeups) + 1, self._wake, *wakeups, "MIN", lasts_s=self._interval_s)
        self._wakeups, self._asked = wakeups, False

    def arrived(self) -> bool:
        """Tell, without waiting, whether the call has ended. Raises as `BlockingConnection.arrived`."""
        if not self._wakeups:
            return False
        if self._blocking.overdue and not self._asked:
            # The server ends the call by its wall clock: after a step back that is late. One that lives takes the wake-up.
            self._asked = True
            self._blocking.postpone()
            # Without waiting: a server that is gone does not answer.
            self._commands.send_nowait(script("notify"), [self._wake], WAKE_TTL_MS)
        try:
            return self._blocking.arrived()
        except ServerTimeout:
            self._wakeups = ()
            raise

    def take(self) -> bytes | None:
        """Read the ended call: the wake-up that came; None after the timeout or our own wake-up.

        Raises as `BlockingConnection.finish`.
        """
        self._wakeups = ()
        reply = self._blocking.finish()
        if reply is None or reply[0] == self._wake:
            return None
        return bytes(reply[0])

    def wake(self) -> None:
        """End the outstanding call soon, without waiting for its end: `arrived` will tell."""
        if self._wakeups:
            # The expiry is for the case that we die before the call takes the key away.
            self._commands.call(script("notify"), [self._wake], WAKE_TTL_MS)

    def cancel_wait(self) -> None:
        """End the outstanding call in order: a wake-up that came meanwhile is passed on, to this client if it waits for it again.

        Raises as `CommandConnection.call` and `BlockingConnection.finish` do.
        """
        if not self._wakeups:
            return
        self.wake()
        wakeup = self.take()
        self._commands.command("DEL", self._wake)
        if wakeup is not None:
            self.notify(wakeup)

    def reset(self) -> None:
        """Note that the connection was abandoned, and the call with it."""
        self._wakeups = ()

    def notify(self, wakeup: bytes) -> None:
        """Pass a wake-up on to the next client that waits."""
        self._commands.call(script("notify"), [wakeup], FORWARDED_WAKEUP_MS)
