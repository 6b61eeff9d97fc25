"""One shard as a command, or another shard, sees it that moves something there: all over one connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.keys import Keys
from celery_redis_plus.shards.replicated import reply_timeout

if TYPE_CHECKING:
    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.options import Options


class Place:
    """A shard over one connection.

    Attributes:
        number: the shard's.
        commands: the connection.
        topology: what the declarations here go by.
        fanout: spells the keys of a fanout exchange.
    """

    def __init__(self, number: int, commands: CommandConnection, options: Options) -> None:
        """Use the shard `number` over a connection; `options` are the broker's, with its number of shards."""
        self.number, self.commands = number, commands
        self.keys = keys = Keys(commands.connector.options.global_keyprefix)
        self.topology = DeclaredTopology(options.shards)
        self.fanout = partial(keys.fanout, prefix=options.stream_prefix(commands.connector.address.db))
        self.queues = Queues(
            commands, keys, transient_ttl_s=options.transient_queue_ttl, event_log=EventLogSettings.of(options),
            topology=self.topology,
        )  # fmt: skip
        self.bindings = Bindings(commands, keys, self.topology, self.fanout)


def connect(address: Address, options: Options, purpose: str) -> CommandConnection:
    """Return a connection to the shard of `options`, whose replies may wait for replicas; it opens at its first use."""
    return CommandConnection(Connector(address, options), purpose, timeout=reply_timeout(options))
