"""What tests of migrations need of kombu's own Redis transport, and of the queues behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import kombu
import pytest

from tests.support.inbox import Inbox

if TYPE_CHECKING:
    from kombu.transport.base import Message
    from kombu.transport.redis import Channel

    from tests.support.servers import Server

TASK = {"id": "an id", "task": "shop.pay"}


def declare_old(channel: Channel, *names: str) -> None:
    """Declare queues as Celery does: bound to an exchange of the same name."""
    for name in names:
        kombu.Queue(name, kombu.Exchange(name), routing_key=name)(channel).declare()


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def old(server: Server, broker_url: str) -> Iterator[Channel]:
    """A channel of kombu's own Redis transport on the same database."""
    with kombu.Connection(server.url(scheme="redis")) as connection:
        yield connection.default_channel


@pytest.fixture
def received(connect: Callable[..., kombu.Connection]) -> Callable[..., list[Message]]:
    """Consume all of a queue with our transport."""

    def consume(queue: str, count: int, **options: Any) -> list[Message]:
        inbox = Inbox(connect(**options).channel(), queue)
        inbox.drain(count)
        return inbox.messages

    return consume
