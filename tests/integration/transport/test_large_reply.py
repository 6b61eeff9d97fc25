"""A body that is larger than what the server sends to a client ends alone, at the delivery limit."""

from __future__ import annotations

import time

import kombu
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.inbox import Inbox, declare, publish
from tests.support.servers import new_server
from tests.support.stored import LARGE_BODY, keys_of


@pytest.fixture(scope="module")
def narrow():
    """A server that sends no reply over 200 kB."""
    with new_server() as server, server.client() as client:
        client.config_set("client-output-buffer-limit", "normal 200000 0 0")
        yield server


def test_a_body_that_the_server_does_not_send_ends_at_the_delivery_limit(narrow):
    options = {"delivery_limit": 2, "connection_lost_grace": 0}
    with kombu.Connection(narrow.url(), transport_options=options) as connection, narrow.client() as client:
        channel = connection.channel()
        declare(channel, "q")
        publish(channel, "q", "x" * (LARGE_BODY + 1), "small")
        of = keys_of("q")
        got = []
        deadline = time.monotonic() + 60
        while not (got and client.zcard(of.dead)):
            assert time.monotonic() < deadline, (got, client.zcard(of.ready), client.zcard(of.dead))
            with kombu.Connection(narrow.url(), transport_options=options) as consuming:
                inbox = Inbox(consuming.channel(), "q")
                try:
                    while inbox.pump(1):
                        got += [inbox.messages[-1].payload]
                except RedisConnectionError:
                    continue
        assert got == ["small"]
        (tag,) = client.zrange(of.dead, 0, -1)
        assert client.hget(of.message + tag, "reason") == b"delivery_limit"
        assert client.hget(of.message + tag, "error").startswith(b"ServerUnreachable: ")
