"""Whoever sweeps a queue goes by the visibility timeouts of those that hold its messages: its record has them."""

from __future__ import annotations

import pytest

from celery_redis_plus.maintenance.lease_heartbeats import LONGEST_INTERVAL_S
from celery_redis_plus.maintenance.sweeper import GRACE_INTERVALS
from celery_redis_plus.scripts import script
from tests.integration.clock.conftest import sweeper_of

SHORT_MS, LONG_MS, HOUR_S = 3000, 60_000, 3600


@pytest.fixture
def heartbeat(broker):
    """Hold a message of `q`. `heartbeat(timeout_ms)` sends one for it, and returns the timeouts that the record has then."""
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.claim("q")
    of = broker.keys.queue("q")

    def send(timeout_ms):
        places = [of.index, of.message, of.meta]
        assert broker.commands.call(script("extend_leases"), places, timeout_ms, 1, message.tag, message.claim) == []
        return [int(value) for value in broker.client.hget(of.meta, "timeouts").split()[::2]]

    return send


def test_the_shortest_and_the_longest_are_noted(heartbeat):
    assert heartbeat(LONG_MS) == [LONG_MS, LONG_MS]
    assert heartbeat(SHORT_MS) == [SHORT_MS, LONG_MS]
    assert heartbeat(LONG_MS) == [SHORT_MS, LONG_MS]


def test_one_that_nobody_tells_any_more_is_forgotten_after_an_hour(clock, heartbeat):
    heartbeat(SHORT_MS)
    for _ in range(3):
        clock.step(HOUR_S / 2)
        assert heartbeat(SHORT_MS) == [SHORT_MS, SHORT_MS]
    clock.step(HOUR_S * 0.9)
    assert heartbeat(LONG_MS) == [SHORT_MS, LONG_MS]
    clock.step(HOUR_S * 0.2)
    assert heartbeat(LONG_MS) == [LONG_MS, LONG_MS]


def test_a_step_back_lets_none_count_for_longer(clock, heartbeat):
    heartbeat(SHORT_MS)
    clock.step(-10 * HOUR_S)
    assert heartbeat(LONG_MS) == [SHORT_MS, LONG_MS]
    clock.step(HOUR_S * 1.1)
    assert heartbeat(LONG_MS) == [LONG_MS, LONG_MS]


def test_a_deleted_queue_gets_no_record_by_a_heartbeat(broker, heartbeat):
    heartbeat(SHORT_MS)
    broker.client.delete("meta:{q}")
    with pytest.raises(AttributeError):
        heartbeat(LONG_MS)
    assert not broker.client.exists("meta:{q}")
    broker.client.flushdb()


def test_after_a_step_back_a_claim_ends_by_its_own_timeout_not_by_the_sweepers(clock, broker, heartbeat):
    heartbeat(SHORT_MS)
    sweeper = sweeper_of(broker, "other", LONG_MS / 1000)
    sweeper.run()
    clock.step(-HOUR_S)
    sweeper.run_soon("q")
    sweeper.run()
    ((_, deadline),) = broker.client.zrange("messages_index:{q}", 0, -1, withscores=True)
    assert deadline <= clock.now_ms + SHORT_MS


def test_after_a_step_forward_the_grace_is_that_of_the_longest(clock, broker, heartbeat):
    """Who holds messages for longer sends heartbeats more rarely."""
    heartbeat(LONG_MS)
    heartbeat(SHORT_MS)
    sweeper = sweeper_of(broker, "other", SHORT_MS / 1000)
    sweeper.run()
    clock.step(HOUR_S)
    sweeper.run_soon("q")
    sweeper.run()
    assert int(broker.client.hget("meta:{q}", "grace")) - clock.now_ms > GRACE_INTERVALS * LONGEST_INTERVAL_S * 900
