"""Cuts the connections between clients of ours and a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis


def kill_connections(client: redis.Redis) -> None:
    """Cut every connection of ours to the broker's database; those of tasks to the tests' own database stay."""
    for one in client.client_list():
        if one["db"] == "0" and one["name"].startswith("celery-redis-plus"):
            client.client_kill_filter(_id=one["id"])


def lose_connection(connection: Any) -> None:
    """Cut the kombu connection's wire for commands from this side: it finds out with its next command."""
    connection.transport.session.commands.abort()
