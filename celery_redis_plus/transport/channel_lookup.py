"""What the package's functions take as `connection`: whatever leads to a channel of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.transport.channel import Channel


@contextmanager
def channel_of(source: Any) -> Iterator[Channel]:
    """Give a channel of ours on a connection, a channel, or a Celery app.

    Raises:
        InvalidArgument: it is none of these, or leads to another transport.
    """
    if isinstance(source, Channel):
        yield source
    elif isinstance(source, Connection):
        yield _ours(source.default_channel)
    elif hasattr(source, "producer_or_acquire"):
        with source.producer_or_acquire() as producer:
            yield _ours(producer.channel)
    else:
        raise InvalidArgument(f"connection is {source!r}; allowed are a kombu Connection, a channel, or a Celery app")


def _ours(channel: Any) -> Channel:
    if not isinstance(channel, Channel):
        raise InvalidArgument(f"connection leads to {channel!r}; allowed is one over the transport of celery_redis_plus")
    return channel
