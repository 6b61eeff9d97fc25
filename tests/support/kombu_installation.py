"""What tests of migrations need of kombu's own Redis transport, and of the queues behind it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import kombu
import pytest

from tests.support.inbox import Inbox

TASK = {"id": "an id", "task": "shop.pay"}


def declare_old(channel, *names):
    """Declare queues as Celery does: bound to an exchange of the same name."""
    for name in names:
        kombu.Queue(name, kombu.Exchange(name), routing_key=name)(channel).declare()


def in_seconds(seconds):
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def old(server, broker_url):
    """A channel of kombu's own Redis transport on the same database."""
    with kombu.Connection(server.url(scheme="redis")) as connection:
        yield connection.default_channel


@pytest.fixture
def received(connect):
    """Consume all of a queue with our transport."""

    def consume(queue, count, **options):
        inbox = Inbox(connect(**options).channel(), queue)
        inbox.drain(count)
        return inbox.messages

    return consume
