"""Holds the raise of the number of shards for one command, in the first shard: a second command is refused."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from celery_redis_plus.errors import OptionError
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Seconds for which a command holds the raise that is heard of no more: each page renews it.
HOLD_S: Final = 10.0
#: Seconds between two looks whether a command that was killed holds it no longer.
LOOK_AGAIN_S: Final = 0.1


class RaiseHold:
    """The hold of one command."""

    def __init__(self, commands: CommandConnection, keys: Keys, shards: int, mark: bytes) -> None:
        """Hold nothing yet.

        Args:
            commands: the connection to the first shard.
            keys: spells its keys.
            shards: the number that is raised to.
            mark: that of the first shard, as it was read.
        """
        self._commands, self._keys = commands, keys
        self._shards, self._mark = shards, mark
        self._token = secrets.token_hex(8)
        #: Whether a raise to this number was begun before, and not finished.
        self.is_continued = False

    def begin(self) -> int | None:
        """Hold the raise; return the other number that a raise was begun to and not finished, None where there is none.

        Where a command to the same number was killed a moment ago, this waits until its hold is over.

        Raises:
            OptionError: another command raises the number now, or has raised it since it was read.
            redis.exceptions.RedisError: as `CommandConnection.call`.
        """
        until = time.monotonic() + HOLD_S + 1
        how, number = self._call()
        while how == "busy" and number == self._shards and time.monotonic() < until:
            time.sleep(LOOK_AGAIN_S)
            how, number = self._call()
        self.is_continued = number == self._shards
        self._check(how, number)
        return number if how == "other" else None

    def renew(self, *, mark: bytes = b"", undone: int | None = None) -> None:
        """Go on holding it. Raises as `begin`.

        Args:
            mark: what becomes the mark of the first shard, in the same moment.
            undone: the other number that `begin` returned, whose raise has left nothing.
        """
        how, number = self._call(mark, undone)
        self._check("busy" if how == "other" else how, number)
        if mark:
            self._mark = mark

    def renew_other(self) -> None:
        """Go on holding it while another raise is undone. Raises as `begin`."""
        how, number = self._call()
        self._check(how, number)

    def end(self, *, done: bool) -> None:
        """Hold it no longer; where it is `done`, the number may be raised to another one."""
        # One that cannot be told ends by itself.
        with suppress(RedisError, OSError):
            self._commands.call(script("release_raise"), [self._keys.shards_raise], self._token, int(done))

    def _call(self, mark: bytes = b"", undone: int | None = None) -> tuple[str, int | None]:
        how, number = self._commands.call(
            script("hold_raise"), [self._keys.shards_raise, self._keys.database_id],
            self._token, self._shards, int(HOLD_S * 1000), self._mark, mark, "" if undone is None else undone,
        )  # fmt: skip
        return how.decode(), int(number) if number else None

    def _check(self, how: str, number: int | None) -> None:
        if how == "busy":
            raise OptionError(
                f"another command raises the number of shards to {number} now; allowed is one at a time (one that was killed "
                f"counts for {HOLD_S:.0f} s)"
            )
        if how == "moved":
            raise OptionError("the number of shards was changed by another command meanwhile; look at it and run this one again")
