"""Publishes that the server carries out and whose publisher does not hear of it: the connection is cut before the reply comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.errors import ServerUnreachable

if TYPE_CHECKING:
    import pytest

    from celery_redis_plus.scripts import Script


class LostReplies:
    """Loses the replies of the next publishes of this process; `lost` counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left, self.lost = 0, 0
        run = CommandConnection.call_packed

        def call_packed(connection: CommandConnection, what: Script, packed: bytes) -> Any:
            reply = run(connection, what, packed)
            if not what.name.startswith("publish") or not self._left:
                return reply
            self._left -= 1
            self.lost += 1
            connection.outcome_unknown = True
            error = ServerUnreachable("the reply was lost")
            connection.abort(error)
            raise error

        monkeypatch.setattr(CommandConnection, "call_packed", call_packed)

    def lose(self, count: int = 1) -> None:
        """Lose the replies of so many publishes from now on."""
        self._left = count


def lose_the_replies(monkeypatch: pytest.MonkeyPatch, *, arrived: bool) -> None:
    """Have the connection of the next batch cut within it: after the server has executed it, or before."""
    pipeline = CommandConnection.pipeline

    def cut(commands: CommandConnection, *arguments: Any) -> None:
        monkeypatch.undo()
        if arrived:
            pipeline(commands, *arguments)
        error = ConnectionResetError("cut")
        commands.abort(error)
        commands.outcome_unknown = True
        raise error

    monkeypatch.setattr(CommandConnection, "pipeline", cut)
