"""A server that comes back with a large data set accepts connections long before it answers."""

import random
import threading

import pytest
from kombu import Connection

from celery_redis_plus.errors import ServerLoading
from tests.support.servers import new_server
from tests.support.waiting import wait_until

KEYS, KEY_S = 10, 0.3


@pytest.fixture
def loading():
    """The port of a server that takes three seconds to load."""
    with new_server({"dbfilename": "slow.rdb"}) as server:
        with server.client() as client:
            for number in range(KEYS):
                client.set(f"k{number}", random.randbytes(5000))
            client.save()
        server.kill()
        # Both are for tests of the server itself: it looks at its connections so often while it loads, and takes so long.
        server.config["loading-process-events-interval-bytes"] = "1024"
        server.config["key-load-delay"] = str(int(KEY_S * 1_000_000))
        start = threading.Thread(target=server.start)
        start.start()
        yield server
        start.join(30)


def test_a_connection_fails_as_long_as_the_server_loads_its_data(loading):
    """Or a worker would connect, fail with its first command and connect again, without a pause and with ten lines each time."""
    errors = []

    def connected():
        # Not `connect()`, which tries twice.
        transport = Connection(loading.url()).transport
        try:
            connection = transport.establish_connection()
        except transport.connection_errors as error:
            errors.append(error)
            return False
        transport.close_connection(connection)
        with loading.client() as client:
            return client.dbsize() == KEYS

    wait_until(connected, 30, interval_s=0.05)
    assert any(isinstance(error, ServerLoading) for error in errors), set(map(repr, errors))
