"""A server ends blocking calls by its wall clock: after a step back it ends them late, and lives all the same."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.flow_control.publisher_queue import PublisherWaitQueue
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.errors import ServerTimeout
from tests.integration.transport.conftest import connect  # noqa: F401
from tests.support.inbox import Inbox, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


@pytest.fixture
def waiting(connect):  # noqa: F811
    """A consumer that waits for wake-ups, and its session."""
    connection = connect(polling_interval=60)
    inbox = Inbox(connection.channel(), "q")
    inbox.rest(0.1)
    session = inbox.channel.consumer_session
    assert session.waiter.waiting
    return inbox, session


def test_a_wait_that_is_overdue_is_ended_and_not_its_connection(waiting):
    inbox, session = waiting
    session.wakeup_connection._overdue_at = 0.0  # noqa: SLF001 - as after a step back of the server's clock
    wait_until(session.waiter.arrived)
    assert session.waiter.take() is None
    assert not session.broken
    publish(inbox.channel, "q", 1)
    assert inbox.drain(1) == [1]


def test_a_wait_on_a_server_that_is_gone_ends_the_connection(waiting):
    _, session = waiting
    blocking = session.wakeup_connection
    session.waiter._wake = b"elsewhere"  # noqa: SLF001 - the server does not answer
    blocking._overdue_at = 0.0  # noqa: SLF001
    assert not session.waiter.arrived()
    blocking._overdue_at = 0.0  # noqa: SLF001
    with pytest.raises(ServerTimeout, match="the connection is dead"):
        session.waiter.arrived()
    assert session.broken


def test_a_publisher_that_waits_for_room_goes_on_where_its_call_is_overdue(connect):  # noqa: F811
    session = connect().default_channel.session
    queues = PublisherWaitQueue(
        session.commands,
        session.keys.queue,
        lambda: BlockingConnection(session.connector, "capacity", timeout=0.2),
        on_failure=session.fail,
    )
    began = machine_time()
    queues.wait("q", "waiter", 5)
    assert machine_time() - began < 2
