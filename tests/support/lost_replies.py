"""Cuts a connection within a batch of publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.command_connection import CommandConnection

if TYPE_CHECKING:
    import pytest


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
