"""What `celery-redis-plus check` finds, for tests in which it should find nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.broker.integrity import Checker
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.keys import Keys
from celery_redis_plus.options import Options

if TYPE_CHECKING:
    import redis


def found(client: redis.Redis, keys: Keys) -> list[str]:
    """Return a line for each violation in the database of `client`."""
    place = client.connection_pool.connection_kwargs
    if "key_prefix" in place:
        address = Address.from_url(f"redisplus+cluster://{place['host']}:{place['port']}/0")
        keys = Keys(place["key_prefix"].decode())
    else:
        address = Address.from_parts(
            hostname=place["host"],
            port=place["port"],
            virtual_host=str(place.get("db") or 0),
            username=place.get("username"),
            password=place.get("password"),
        )
    commands = CommandConnection(Connector(address, Options()), "check", timeout=5)
    try:
        checker = Checker(commands, keys, Queues(commands, keys, transient_ttl_s=300), settle_s=0.2)
        return [violation.line() for violation in checker.run()]
    finally:
        commands.close()
