"""Waits for work: one blocked BZMPOP over the bells of a consumer's queues and a bell of its own.

A bell says "look", it holds no message: a process that dies between a bell and its claim has taken nothing. Of many clients
blocked on one bell the server wakes the one that has waited longest, and only that one.
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
#: Life of a bell that is passed on: its queue may have been deleted meanwhile. The sweep rings again for what waits.
PASSED_ON_MS = 60_000


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
        self._bells: tuple[bytes, ...] = ()

    @property
    def armed(self) -> tuple[bytes, ...]:
        """The bells that the outstanding call waits for; empty without one."""
        return self._bells

    def arm(self, bells: Sequence[bytes]) -> None:
        """Send the blocking call. Raises as `BlockingConnection.start` does."""
        bells = tuple(bells)
        self._blocking.start("BZMPOP", self._interval_s, len(bells) + 1, self._wake, *bells, "MIN", lasts_s=self._interval_s)
        self._bells = bells

    def arrived(self) -> bool:
        """Tell, without waiting, whether the call has ended. Raises as `BlockingConnection.arrived`."""
        if not self._bells:
            return False
        try:
            return self._blocking.arrived()
        except ServerTimeout:
            self._bells = ()
            raise

    def take(self) -> bytes | None:
        """Read the ended call: the bell that rang; None after the timeout or our own wake-up.

        Raises as `BlockingConnection.finish`.
        """
        self._bells = ()
        reply = self._blocking.finish()
        if reply is None or reply[0] == self._wake:
            return None
        return bytes(reply[0])

    def wake(self) -> None:
        """End the outstanding call soon, without waiting for its end: `arrived` will tell."""
        if self._bells:
            # The expiry is for the case that we die before the call takes the key away.
            self._commands.call(script("notify"), [self._wake], WAKE_TTL_MS)

    def disarm(self) -> bytes | None:
        """End the outstanding call in order: no bell is lost. Returns the bell that rang instead, which the caller rings on."""
        if not self._bells:
            return None
        self.wake()
        bell = self.take()
        self._commands.command("DEL", self._wake)
        return bell

    def forget(self) -> None:
        """Note that the wire was abandoned, and the call with it."""
        self._bells = ()

    def ring(self, bell: bytes) -> None:
        """Pass a bell on to the next client that waits."""
        self._commands.call(script("notify"), [bell], PASSED_ON_MS)
