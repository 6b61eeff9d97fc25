"""Has replicas store what goes to another shard, as `wait_replicas` asks, before it is removed where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.options import Options
    from celery_redis_plus.scripts import Script


def call_replicated(commands: CommandConnection, called: Script, keys: list[bytes], *arguments: Argument) -> Any:
    """Run a script that writes whenever it is called; return its reply when `wait_replicas` replicas have what it wrote.

    Raises:
        TimeoutError: fewer had it within `wait_replicas_timeout`. It is stored; a second call stores nothing twice.
        redis.exceptions.RedisError: as `CommandConnection.call`.
    """
    options = commands.connector.options
    wanted = options.wait_replicas
    if not wanted:
        return commands.call(called, keys, *arguments)
    # In one write: behind a connection that was opened anew, WAIT would know of nothing to wait for.
    call = ("EVALSHA", called.sha, len(keys), *keys, *arguments)
    wait = ("WAIT", wanted, max(1, int(options.wait_replicas_timeout * 1000)))
    reply, confirmed = commands.pipeline([call, wait], called)
    if isinstance(reply, NoScriptError):
        reply, confirmed = commands.pipeline([call, wait], called)
    for answer in (reply, confirmed):
        if isinstance(answer, Exception):
            raise answer
    if confirmed < wanted:
        raise TimeoutError(
            f"messages for another shard are stored there, but only {confirmed} of {wanted} replicas have them after "
            f"{options.wait_replicas_timeout:g} s (options wait_replicas, wait_replicas_timeout); they stay in the old one, too, "
            "until that is so: mend the replicas, and try again"
        )
    return reply


def reply_timeout(options: Options) -> float | None:
    """Return how long a reply may take that waits for replicas, in seconds; None is for ever."""
    if options.socket_timeout is None or not options.wait_replicas:
        return options.socket_timeout
    return options.socket_timeout + options.wait_replicas_timeout
