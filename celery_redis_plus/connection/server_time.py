"""The server's clock, by which everything is timed that the scripts write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection


def server_ms(commands: CommandConnection) -> int:
    """Return the server's time, ms since the epoch.

    Raises:
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    seconds, micros = commands.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000
