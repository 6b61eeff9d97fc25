"""A connection for one blocking call at a time: how the call ends, and how its connection does."""

from __future__ import annotations

import pytest
import redis

from celery_redis_plus.connection import blocking_connection
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.errors import ServerTimeout, ServerUnreachable
from tests.support.waiting import wait_until


def test_a_blocking_call_ends_with_what_came(open_commands, redis_client):
    blocking = open_commands(BlockingConnection, purpose="blocking")
    blocking.start("BZPOPMIN", "wakeup", 5)
    assert not blocking.arrived()
    redis_client.zadd("wakeup", {"x": 1})
    wait_until(blocking.arrived)
    assert blocking.finish()[0] == b"wakeup"


def test_a_blocking_call_outlives_the_timeout_of_ordinary_ones(open_commands, redis_client):
    """Whoever waits asks `arrived`; only a read has a limit."""
    blocking = open_commands(BlockingConnection, purpose="blocking", timeout=0.1)
    blocking.start("BZPOPMIN", "wakeup", 0.4)
    wait_until(blocking.arrived)
    assert blocking.finish() is None


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_blocking_call_that_an_operator_ends_is_over(open_commands, redis_client, how):
    blocking = open_commands(BlockingConnection, purpose="blocking")
    blocking.start("BZPOPMIN", "wakeup", 60)
    (client,) = wait_until(lambda: [one["id"] for one in redis_client.client_list() if "b" in one["flags"]])
    assert redis_client.execute_command("CLIENT", "UNBLOCK", client, how) == 1
    wait_until(blocking.arrived)
    assert blocking.finish() is None
    blocking.start("BZPOPMIN", "wakeup", 0.01)
    wait_until(blocking.arrived)
    assert blocking.finish() is None


def test_a_blocking_call_that_the_server_does_not_end_in_time_is_given_up(open_commands, monkeypatch):
    monkeypatch.setattr(blocking_connection, "REPLY_GRACE_S", 0.1)
    blocking = open_commands(BlockingConnection, purpose="blocking")
    blocking.start("BZPOPMIN", "wakeup", 60, lasts_s=0.1)
    assert not blocking.arrived()
    with pytest.raises(ServerTimeout, match="blocking: no answer"):
        wait_until(blocking.arrived)
    assert not blocking.connected


def test_a_blocking_call_whose_connection_is_cut_says_so(open_commands, cut):
    blocking = open_commands(BlockingConnection, purpose="blocking")
    blocking.start("BZPOPMIN", "wakeup", 5)
    cut("blocking")
    wait_until(blocking.arrived)
    with pytest.raises(ServerUnreachable):
        blocking.finish()
    with pytest.raises(ServerUnreachable):
        blocking.finish()


def test_a_refused_blocking_call_keeps_the_connection(open_commands):
    blocking = open_commands(BlockingConnection, purpose="blocking")
    blocking.start("BZPOPMIN", "wakeup", "soon")
    with pytest.raises(redis.ResponseError):
        blocking.finish()
    assert blocking.connected


def test_a_blocking_call_whose_connection_is_reset_says_so_and_connects_only_for_the_next_one(open_commands, proxy):
    blocking = open_commands(BlockingConnection, purpose="blocking", port=proxy.port)
    blocking.start("BZPOPMIN", "wakeup", 5)
    failures = []
    blocking.on_failure = lambda: failures.append(1)
    proxy.reset()
    wait_until(blocking.arrived)
    assert blocking.arrived()
    with pytest.raises(ServerUnreachable):
        blocking.finish()
    assert (blocking.connected, blocking.generation, failures) == (False, 1, [1])
    blocking.start("BZPOPMIN", "wakeup", 0.01)
    assert blocking.finish() is None
    assert blocking.generation == 2
