"""A server that takes connections and no writes: a connection to it fails, so that clients wait between two attempts."""

from __future__ import annotations

import pytest
from kombu import Connection, Producer
from kombu.exceptions import OperationalError

from celery_redis_plus.errors import ReadOnlyReplica, ServerUnavailable
from tests.support.servers import new_server


@pytest.fixture
def server():
    with new_server() as server:
        yield server


def demote(client, primary):
    client.replicaof("127.0.0.1", primary.port)


def promote(client):
    client.replicaof("no", "one")


def want_replicas(client, _):
    client.config_set("min-replicas-to-write", 1)


def want_none(client):
    client.config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize(
    ("refuse", "allow", "error"), [(demote, promote, ReadOnlyReplica), (want_replicas, want_none, ServerUnavailable)]
)
def test_a_connection_fails_as_long_as_writes_are_refused(refuse, allow, error, server):
    with new_server() as primary, server.client() as client, Connection(server.url()) as first:
        first.SimpleQueue("q").put("before")
        refuse(client, primary)
        with pytest.raises(error):
            Producer(first.channel()).publish("refused", routing_key="q")
        tries = []
        with Connection(server.url()) as second, pytest.raises(OperationalError) as failed:
            second.ensure_connection(lambda error, _: tries.append(type(error)), max_retries=2, interval_start=0.01)
        assert isinstance(failed.value.__cause__, error)
        assert set(tries) == {error}
        allow(client)
        with Connection(server.url()) as third:
            queue = third.SimpleQueue("q")
            queue.put("after")
            # The one before is gone where the replica has got the primary's data.
            assert queue.qsize() >= 1
