"""How long the server leaves connections without traffic open: its setting `timeout`.

Source: https://valkey.io/topics/clients, "Client timeouts"; a client that waits in a blocking command is not closed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection

logger = logging.getLogger(__name__)

#: Seconds that are assumed where the server does not tell, as with most providers: some close connections after 10 minutes.
UNKNOWN_S = 180.0


def idle_timeout_s(commands: CommandConnection) -> float:
    """Return the server's `timeout` in seconds, 0 for none. Raises as `CommandConnection.command` does, but for a refusal.

    A user with a name is assumed to have no right to ask: the server would log each refusal.
    """
    connector = commands.connector
    if connector.address.username or connector.credentials is not None:
        return UNKNOWN_S
    try:
        reply = commands.command("CONFIG", "GET", "timeout")
        return float(reply[1]) if reply else UNKNOWN_S
    except ResponseError as error:
        logger.debug("CONFIG GET is refused: %s", error)
        return UNKNOWN_S
