"""Waits for work: one blocked BZMPOP over the wake-ups of a consumer's queues and a wake-up of its own.

A wake-up holds no message: a process that dies between a wake-up and its claim has taken nothing. Of many clients
blocked on one wake-up the server wakes the one that has waited longest, and only that one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.line_interval import LineInterval
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.errors import ServerTimeout
from celery_redis_plus.keys import decode_name
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.blocking_connection import BlockingConnection
    from celery_redis_plus.connection.command_connection import CommandConnection

logger = logging.getLogger(__name__)

WAKE_TTL_MS = 60_000
#: Seconds for which a wake-up is left out whose key is of another type, and after which a wait without it ends.
LEFT_OUT_S = 5.0
#: Seconds between two lines in the log about such a wake-up.
LEFT_OUT_LOG_S = 60.0
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
        #: Wake-ups whose keys are of another type: a call that has them fails for all.
        self._left_out: frozenset[bytes] = frozenset()
        #: Until when, on `clock`, in seconds.
        self._left_out_until = 0.0
        self._logged = LineInterval(LEFT_OUT_LOG_S)

    @property
    def waiting(self) -> tuple[bytes, ...]:
        """The wake-ups that the outstanding call waits for; empty without one."""
        return self._wakeups

    def start_wait(self, wakeups: Sequence[bytes]) -> None:
        """Send the blocking call; none without wakeups. Raises as `BlockingConnection.start` does."""
        wakeups = tuple(wakeups)
        if not wakeups:
            return
        awaited, interval_s = wakeups, self._interval_s
        if self._left_out:
            if clock.now_s() >= self._left_out_until:
                self._left_out = frozenset()
            awaited = tuple(wakeup for wakeup in wakeups if wakeup not in self._left_out)
            interval_s = min(interval_s, LEFT_OUT_S)
        self._blocking.start("BZMPOP", interval_s, len(awaited) + 1, self._wake, *awaited, "MIN", lasts_s=interval_s)
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

        None as well where the server has refused the call for a wake-up whose key is of another type: the next ones go without.

        Raises as `BlockingConnection.finish`.
        """
        wakeups, self._wakeups = self._wakeups, ()
        try:
            reply = self._blocking.finish()
        except ResponseError as error:
            if not (concerns_keys(error) and self._leave_out(wakeups)):
                raise
            return None
        if reply is None or reply[0] == self._wake:
            return None
        return bytes(reply[0])

    def _leave_out(self, wakeups: Sequence[bytes]) -> bool:
        """Leave out the wake-ups whose keys are of another type; return whether there are some."""
        types = self._commands.pipeline([("TYPE", wakeup) for wakeup in wakeups])
        found = [wakeup for wakeup, type_ in zip(wakeups, types, strict=True) if type_ not in (b"zset", b"none")]
        self._left_out, self._left_out_until = frozenset(found), clock.now_s() + LEFT_OUT_S
        for wakeup in found:
            if self._logged.count(decode_name(wakeup)):
                logger.error(
                    "the key %s is of another type: its queue is looked at every %g s instead of being waited for",
                    decode_name(wakeup), LEFT_OUT_S,
                )  # fmt: skip
        return bool(found)

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
