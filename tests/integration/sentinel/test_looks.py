"""The look for the master once a second: over connections that stay open, and end with the last one to the master."""

import pytest

from celery_redis_plus.connection import master_looks
from tests.support.connections import opened_connections
from tests.support.waiting import wait_until


@pytest.fixture
def wire(deployment, monkeypatch):
    monkeypatch.setattr(master_looks, "LOOK_S", 0.0)
    with opened_connections() as opened:
        yield opened(deployment.url())


def askers(sentinel):
    """Return the ids of the connections to a Sentinel that ask for the master."""
    with sentinel.client() as client:
        listed = client.client_list()
    return {one["id"] for one in listed if one["name"] == "celery-redis-plus:sentinel"}


def look_until(wire, condition):
    """Use the connection, which looks each time, until `condition` holds."""
    wait_until(lambda: wire.command("PING") == b"PONG" and condition(), 10)


def test_looks_open_one_connection_to_each_sentinel_and_no_more(deployment, wire):
    look_until(wire, lambda: all(len(askers(sentinel)) == 1 for sentinel in deployment.sentinels))
    known = [askers(sentinel) for sentinel in deployment.sentinels]
    with deployment.sentinels[0].client() as client:
        asked = client.info("stats")["total_commands_processed"]
        # A look asks two things.
        look_until(wire, lambda: client.info("stats")["total_commands_processed"] > asked + 100)
    assert [askers(sentinel) for sentinel in deployment.sentinels] == known


def test_a_connection_that_a_sentinel_closed_is_opened_again(deployment, wire):
    sentinel = deployment.sentinels[0]
    look_until(wire, lambda: len(askers(sentinel)) == 1)
    (closed,) = askers(sentinel)
    with sentinel.client() as client:
        client.client_kill_filter(_id=closed)
    look_until(wire, lambda: len(askers(sentinel)) == 1 and closed not in askers(sentinel))


def test_they_end_with_the_last_connection_to_the_master(deployment, wire):
    look_until(wire, lambda: all(askers(sentinel) for sentinel in deployment.sentinels))
    wire.close()
    wait_until(lambda: not any(askers(sentinel) for sentinel in deployment.sentinels), 5)
