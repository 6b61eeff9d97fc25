"""The broker of a Celery app: its connection as the app makes it, with its TLS, credentials, options and failover list."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.broker_at import ShardPlace, shards_of
from celery_redis_plus.errors import OptionError, ShardUnreachable
from celery_redis_plus.transport.transport import Transport

if TYPE_CHECKING:
    from celery import Celery

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.options import Options


@contextmanager
def connected(app: Celery, shard: int | None = None) -> Iterator[PublisherSession]:
    """Connect to the broker of `app`, or to the shard of it that `shard` numbers.

    Raises:
        OptionError: the app's broker is none of ours, or has several shards, and none is named.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    with connected_shards(app, shard) as sessions:
        if len(sessions) > 1:
            raise OptionError(
                f"this is for one shard of the {len(sessions)} (transport option shards); allowed is the number of one (--shard)"
            )
        yield sessions[0][1]


@contextmanager
def connected_shards(app: Celery, shard: int | None = None) -> Iterator[list[tuple[ShardPlace, PublisherSession]]]:
    """Connect to all shards of the broker of `app`, or to the one that `shard` numbers.

    Raises:
        OptionError: the app's broker is none of ours, or has no such shard.
        redis.exceptions.RedisError: as `error_translation.translate` names it; ShardUnreachable where one is down.
    """
    with reached_shards(app, shard) as found:
        sessions = []
        for place, session in found:
            if isinstance(session, ShardUnreachable):
                raise session
            sessions.append((place, session))
        yield sessions


@contextmanager
def reached_shards(
    app: Celery, shard: int | None = None
) -> Iterator[list[tuple[ShardPlace, PublisherSession | ShardUnreachable]]]:  # fmt: skip
    """Do as `connected_shards`, with the error of a shard in place of its session where it cannot be reached."""
    with app.connection_for_write() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise OptionError(f"the broker of app {app.main!r} is {connection.as_uri()}; allowed: one of celery-redis-plus")
        connection.connect()
        # Of a failover list another URL's transport may have taken its place.
        transport = connection.transport
        found: list[tuple[ShardPlace, PublisherSession | ShardUnreachable]] = []
        for place in shards_of(transport.options, shard):
            try:
                found.append((place, transport.broker(place.number).session))
            except ShardUnreachable as error:
                found.append((place, error))
        yield found


def settings_of(app: Celery) -> tuple[Address, Options]:
    """Return where the broker of `app` is, and its transport options, without connecting. Raises OptionError as `connected`."""
    with app.connection_for_write() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise OptionError(f"the broker of app {app.main!r} is {connection.as_uri()}; allowed: one of celery-redis-plus")
        return transport.read_address(), transport.read_options()


def load_app(name: str) -> Any:
    """Return the app that `celery -A name` would use. Raises whatever importing it raises."""
    from celery.app.utils import find_app

    return find_app(name)


def declare_queues(app: Celery, names: Collection[str]) -> None:
    """Declare those of the app's own queues that have one of the `names`, with their exchanges and bindings.

    Raises:
        kombu.exceptions.ChannelError: a queue stands with other arguments.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    with app.connection_for_write() as connection:
        for name, queue in app.amqp.queues.items():
            if name in names:
                queue(connection.default_channel).declare()
