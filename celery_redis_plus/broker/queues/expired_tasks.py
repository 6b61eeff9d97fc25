"""Tasks that expired in their queue, for the workers: their results say REVOKED when a worker has told the result backend.

The sweep copies each (`lua/include/expired_tasks.lua`): no worker ever sees an expired message, which may be anywhere by now.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import split_payload

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Tasks that one script call takes, and bytes after which it takes no further one.
EXPIRED_A_CALL, EXPIRED_BYTES = 50, 1_000_000
#: Milliseconds after which what was taken is taken again: its worker has died, or its result backend is away.
RETRY_MS = 30_000


@dataclass(frozen=True, slots=True)
class ExpiredTask:
    """A task that expired."""

    tag: str
    #: When it was found expired, ms since the epoch, on the server's clock.
    died_ms: int
    #: One line of JSON: headers and properties.
    envelope: bytes
    body: bytes


class ExpiredTasks:
    """The tasks that expired, over one connection. All methods raise as `CommandConnection.call` does."""

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys.expired
        self._names, self._wakeup = keys.expired[2], keys.expired[-1]

    def waiting(self) -> bool:
        """Return whether there are any, also such that another worker has taken."""
        return bool(self._commands.command("EXISTS", self._names))

    def names(self) -> dict[str, int]:
        """Return the names of the tasks of which some wait, each with the milliseconds since the latest of them expired."""
        reply = self._commands.call(script("list_expired_names"), [self._names])
        return {reply[at].decode(errors="replace"): int(reply[at + 1]) for at in range(0, len(reply), 2)}

    def take(self, names: Collection[str]) -> list[ExpiredTask]:
        """Take some of the tasks `names`; they come back after `RETRY_MS`, unless `done` is called."""
        if not names:
            return []
        fields = self._commands.call(script("claim_expired_tasks"), self._keys, EXPIRED_A_CALL, RETRY_MS, EXPIRED_BYTES, *names)
        return [_task(*fields[at : at + 4]) for at in range(0, len(fields), 4)]

    def done(self, tasks: Sequence[ExpiredTask]) -> None:
        """Forget tasks that are revoked."""
        if tasks:
            self._commands.call(script("remove_expired_tasks"), self._keys, *(task.tag for task in tasks))

    def notify(self) -> None:
        """Wake another worker: this one does not have all of the tasks."""
        self._commands.call(script("notify"), [self._wakeup], "")


def _task(tag: bytes, died: bytes, payload: bytes, large: bytes) -> ExpiredTask:
    envelope, body = split_payload(payload)
    return ExpiredTask(tag.decode(), int(died), envelope, large if body is None else body)
