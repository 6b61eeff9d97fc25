"""After a restart of the server nothing is recovered before living holders had the time to send a heartbeat."""

import time

import pytest

from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from tests.support.waiting import wait_until

#: Longer than any restart here: the gap between two passes alone tells nothing.
VISIBILITY_TIMEOUT_S = 60.0


@pytest.fixture
def persistent(start_server, brokers):
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    with server.client() as client:
        yield server, brokers(client)


def sweep(broker):
    limits = SweepLimits(VISIBILITY_TIMEOUT_S, None, 5, 1000.0)
    sweeper = Sweeper(broker.commands, broker.keys, ConsumedQueues(), name="s", limits=limits, forward=lambda _: None)
    sweeper.watch(["q"])
    sweeper.run()


def hold_until_now(broker):
    """Claim a message whose deadline passes at once, after a pass over the queue, whose grace is over."""
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.claim("q")
    sweep(broker)
    broker.client.hset("meta:{q}", "grace", 1)
    broker.client.zadd("messages_index:{q}", {message.tag: 1})


def places(broker):
    return broker.client.zcard("queue:{q}"), broker.client.zcard("messages_index:{q}")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_what_was_due_during_a_short_restart_stays_with_its_holder_for_a_while(persistent, how):
    server, broker = persistent
    hold_until_now(broker)
    getattr(server, how)()
    server.start()
    broker.commands.abort()
    for _ in range(2):
        sweep(broker)
        assert places(broker) == (0, 1)
    grace_ms = int(broker.client.hget("meta:{q}", "grace")) - time.time() * 1000
    assert 0 < grace_ms <= 10_000
    # As if that time had passed, with passes in it.
    wait_until(lambda: broker.client.info("server")["uptime_in_seconds"] >= 2)
    broker.client.hset("meta:{q}", mapping={"grace": 1, "swept": int(time.time() * 1000)})
    sweep(broker)
    assert places(broker) == (1, 0)


def test_without_a_restart_what_is_due_is_recovered_at_once(persistent):
    _, broker = persistent
    wait_until(lambda: broker.client.info("server")["uptime_in_seconds"] >= 3)
    hold_until_now(broker)
    broker.client.hincrby("meta:{q}", "swept", -900)
    sweep(broker)
    assert places(broker) == (1, 0)
