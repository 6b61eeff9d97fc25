"""Kills a program of this process, as far as the server can tell, before or after one of its commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.command_connection import CommandConnection

if TYPE_CHECKING:
    import pytest


class KilledError(Exception):
    """Ends the program."""


class CommandKills:
    """Ends the program before or after the `at`-th of its commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
        self.when, self.at, self.calls = when, 0, 0
        for method in ("call", "command", "pipeline"):
            self._watch(monkeypatch, method)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        original = getattr(CommandConnection, method)

        def call(connection: CommandConnection, *arguments: Any, **options: Any) -> Any:
            self.calls += 1
            dies = self.calls == self.at
            if dies and self.when == "before":
                raise KilledError
            result = original(connection, *arguments, **options)
            if dies:
                raise KilledError
            return result

        monkeypatch.setattr(CommandConnection, method, call)

    def is_killed(self, act: Callable[[], object], at: int) -> bool:
        """Run `act` and end it at its `at`-th command; return False where it has fewer."""
        self.at, self.calls = at, 0
        try:
            act()
        except KilledError:
            return True
        finally:
            self.at = 0
        return False
