"""The server's clock steps back: a failover to a replica with another clock, an operator's correction."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.pauses import Pausing
from tests.integration.clock.conftest import VISIBILITY_S, sweeper_of
from tests.support.waiting import wait_until

MINUTE_S, DAY_S = 60, 86_400


@pytest.mark.sample(1)
@pytest.mark.parametrize("step_s", [MINUTE_S, DAY_S])
def test_what_a_dead_consumer_held_comes_back_within_the_visibility_timeout(clock, broker, redis_client, step_s):
    broker.claim_commands = type(broker.claim_commands)(
        broker.commands, broker.keys, holder="dead", visibility_timeout_s=VISIBILITY_S
    )
    broker.declare("q")
    broker.publish("q", b"x")
    assert broker.bodies("q") == [b"x"]
    # Another process has the lease when the clock steps, and dies as well.
    sweeper_of(broker, "dead").run()
    clock.step(-step_s)
    living = sweeper_of(broker, "living")

    def recovered():
        living.run()
        return redis_client.zcard("queue:{q}") == 1

    wait_until(recovered, timeout_s=VISIBILITY_S + 3)
    assert int(redis_client.hget("meta:{q}", "swept")) <= clock.now_ms


def test_a_pause_does_not_grow_by_the_step(clock, broker, redis_client):
    broker.declare("q")
    broker.publish("q", b"x")
    Pausing(broker.commands, broker.keys).pause("q", "why", for_s=20)
    sweeper = sweeper_of(broker, "s")
    sweeper.run()
    clock.step(-DAY_S)
    sweeper.run_soon()
    sweeper.run()
    assert 0 < int(redis_client.hget("meta:{q}", "paused_until")) - clock.now_ms <= 20_000
