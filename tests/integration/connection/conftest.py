"""A server without any special configuration, and connections that are closed after the test."""

from __future__ import annotations

import socket

import pytest

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.server_check import ServerCheck
from celery_redis_plus.options import Options
from tests.support.proxy import Proxy
from tests.support.servers import new_server


@pytest.fixture(scope="module")
def plain_server():
    """A server of this module's own, with all 16 databases and its default user."""
    with new_server() as server:
        yield server


@pytest.fixture
def connect():
    """Make a Connector for a URL, which checks each server anew, and close what it opened."""
    opened = []

    class ClosingConnector(Connector):
        def open(self, purpose="test", *, timeout=5.0):
            connection = super().open(purpose, timeout=timeout)
            opened.append(connection)
            return connection

    def make(url, **options):
        return ClosingConnector(Address.from_url(url), Options.from_mapping(options), check=ServerCheck())

    yield make
    for connection in opened:
        connection.disconnect()


@pytest.fixture
def ask():
    """Send one command and return its reply."""

    def call(connection, *command):
        connection.send_command(*command)
        return connection.read_response()

    return call


@pytest.fixture
def closed_port():
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def proxy(redis_client):
    """A network to the server that breaks when the test says so."""
    with Proxy(lambda: redis_client.connection_pool.connection_kwargs["port"]) as proxy:
        yield proxy


@pytest.fixture
def open_commands(redis_client):
    opened = []

    def make(kind=CommandConnection, *, timeout=5.0, purpose="tested", port=None, **options):
        place = redis_client.connection_pool.connection_kwargs
        db = str(place.get("db") or 0)
        address = Address.from_parts(hostname=place["host"], port=port or place["port"], virtual_host=db)
        opened.append(kind(Connector(address, Options(**options)), purpose, timeout=timeout))
        return opened[-1]

    yield make
    for commands in opened:
        commands.close()


@pytest.fixture
def commands(open_commands):
    return open_commands()


@pytest.fixture
def cut(redis_client):
    """Cut a wire's connection from the server's side."""

    def kill(name="tested"):
        for client in redis_client.client_list():
            if client["name"] == f"celery-redis-plus:{name}":
                redis_client.client_kill_filter(_id=client["id"])

    return kill
