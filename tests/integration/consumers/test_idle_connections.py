"""A server that closes connections without traffic (`timeout`) closes none of a consumer that is busy."""

from __future__ import annotations

import time

import pytest

from tests.support.inbox import Inbox, publish

TIMEOUT_S = 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("drain_s", [0.3, None])
def test_a_consumer_with_a_full_window_keeps_what_it_holds(start_server, connect, drain_s):
    server = start_server({"timeout": str(TIMEOUT_S)})
    connection = connect(server.url())
    inbox = Inbox(connection.channel(), "q", prefetch=3, ack=False)
    publish(connect(server.url()).channel(), "q", 1, 2, 3, 4)
    inbox.drain(3)
    session = connection.transport.session
    opened = [one.generation for one in (session.commands, session.consumer.wakeup_connection)]
    until = time.monotonic() + 4 * TIMEOUT_S
    while time.monotonic() < until:
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=drain_s or 4 * TIMEOUT_S)
    assert inbox.bodies == [1, 2, 3]
    assert not session.broken
    assert [one.generation for one in (session.commands, session.consumer.wakeup_connection)] == opened


def test_a_server_that_closes_no_connection_gets_no_signs_of_life(start_server, connect):
    server = start_server()
    connection = connect(server.url())
    inbox = Inbox(connection.channel(), "q", prefetch=1, ack=False)
    publish(connect(server.url()).channel(), "q", 1, 2)
    inbox.drain(1)
    for _ in range(15):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
    with server.client() as client:
        assert client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"] <= 1
