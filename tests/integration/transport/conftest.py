"""kombu connections on a real server, and what every test has to leave behind: nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import kombu
import pytest

from tests.support.declaring import declare_elsewhere, other_process
from tests.support.hubs import Loop
from tests.support.inbox import Inbox, declare, publish

__all__ = ["declare_elsewhere", "other_process"]

Connect = Callable[..., kombu.Connection]
#: Of kombu, which has no types.
Channel = Any


@pytest.fixture
def connect(broker_url: str) -> Iterator[Connect]:
    """Open connections: `connect(visibility_timeout=3)`; all are closed at the end."""
    opened: list[kombu.Connection] = []

    def open_connection(url: str = broker_url, **options: Any) -> kombu.Connection:
        connection = kombu.Connection(url, transport_options=options)
        opened.append(connection)
        connection.connect()
        return connection

    yield open_connection
    for connection in opened:
        with suppress(Exception):
            connection.release()


@pytest.fixture
def connection(connect: Connect) -> kombu.Connection:
    return connect()


@pytest.fixture
def channel(connection: kombu.Connection) -> Channel:
    return connection.channel()


@pytest.fixture
def inbox() -> Callable[..., Inbox]:
    """Consume: `inbox(channel, "q")`."""
    return Inbox


@pytest.fixture
def loop(connect: Connect) -> Iterator[Callable[[kombu.Connection], Loop]]:
    """Serve a connection by a hub: `loop(connection).run(lambda: ...)`."""
    made: list[Loop] = []

    def make(connection: kombu.Connection) -> Loop:
        made.append(Loop(connection))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def worked(connect: Connect, loop: Callable[[kombu.Connection], Loop]) -> Callable[..., tuple[Loop, Inbox, Channel]]:
    """Serve a queue `q` of numbers; `work` gets each message inside a turn of the loop, as a solo worker's task does.

    Returns the loop, the inbox that keeps the messages, and a channel to look with.
    """

    def start(
        work: Callable[[Any], None], *, prefetch: int, count: int, arguments: dict[str, Any] | None = None
    ) -> tuple[Loop, Inbox, Channel]:
        connection, publisher = connect(), connect().channel()
        declare(publisher, "q", arguments=arguments)
        publish(publisher, "q", *range(count))
        queue = kombu.Queue("q", durable=True, queue_arguments=arguments)
        inbox = Inbox(connection.channel(), queue, prefetch=prefetch)

        def take(message: Any) -> None:
            inbox.messages.append(message)
            work(message)

        inbox.consumer.on_message = take
        return loop(connection), inbox, publisher

    return start
