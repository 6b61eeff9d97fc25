"""`celery worker --shard N`: a worker that consumes the queues of one shard, for those who want a process for each."""

from __future__ import annotations

from typing import Any

import click
from celery import bootsteps

from celery_redis_plus.connection.broker_at import shards_of
from celery_redis_plus.errors import OptionError
from celery_redis_plus.transport.transport import Transport

#: One object, so that an app that is configured twice has the option once.
OPTION = click.Option(
    ["--shard"],
    type=click.IntRange(min=0),
    default=None,
    help="Consume only those of the queues that are on this shard of a broker with several. (celery-redis-plus)",
)


class WorkerShard(bootsteps.Step):
    """Selects the queues of one shard, before the worker connects."""

    def __init__(self, parent: Any, shard: int | None = None, **options: Any) -> None:
        """Select them among those that the worker would consume.

        Raises:
            OptionError: there is no such shard, or none of the queues is on it; or the broker is none of ours.
        """
        super().__init__(parent, **options)
        if shard is not None:
            queues = parent.app.amqp.queues
            queues.select(_on_shard(parent.app, shard, list(queues.consume_from)))


def _on_shard(app: Any, shard: int, queues: list[str]) -> list[str]:
    with app.connection_for_read() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise OptionError(f"--shard {shard}: the broker is {connection.as_uri()}; allowed: one of celery-redis-plus")
        (place,) = shards_of(transport.read_options(), shard)
    found = [queue for queue in queues if place.owns(queue)]
    if not found:
        raise OptionError(f"--shard {shard}: none of the queues {', '.join(queues)} is on it; name queues with -Q")
    return found
