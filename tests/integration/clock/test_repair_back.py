"""The server's clock steps back, and the check repairs messages that stand in no set."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.integrity import Checker

HOUR_S = 3600
DELAY_MS = 5000
BACKOFF = {"x-delayed-retry-min": DELAY_MS, "x-delayed-retry-max": DELAY_MS}
AGEING = {"x-priority-ageing": 60_000}


def repair_after_loss(broker):
    """Lose the set of delayed messages of `q`, and have the check put them back."""
    broker.client.delete("delayed:{q}")
    violations = list(Checker(broker.commands, broker.keys, broker.queues, repair=True, settle_s=0).run("q"))
    assert {violation.rule for violation in violations} == {"no-place"}


def due(client):
    """Return when the only delayed message of `q` is due, in ms since the epoch."""
    ((_, due_ms),) = client.zrange("delayed:{q}", 0, -1, withscores=True)
    return due_ms


@pytest.mark.parametrize("arguments", [pytest.param(BACKOFF, id="plain"), pytest.param(BACKOFF | AGEING, id="ageing")])
@pytest.mark.parametrize("how", ["retry", "published"])
def test_a_message_without_a_place_waits_for_its_own_delay_at_most(clock, broker, redis_client, arguments, how):
    broker.declare("q", arguments=arguments)
    if how == "retry":
        broker.publish("q", b"1")
        broker.settle(Settlement.FAIL, *broker.claim("q"))
    else:
        broker.publish("q", b"1", eta=f"+{DELAY_MS}")
    clock.step(-HOUR_S)
    repair_after_loss(broker)
    assert clock.now_ms < due(redis_client) <= clock.now_ms + DELAY_MS


@pytest.mark.parametrize("arguments", [pytest.param({}, id="plain"), pytest.param(AGEING, id="ageing")])
def test_a_message_without_a_place_keeps_its_eta(clock, broker, redis_client, arguments):
    broker.declare("q", arguments=arguments)
    eta = clock.now_ms + 60_000
    broker.publish("q", b"1", eta=eta)
    clock.step(-HOUR_S)
    repair_after_loss(broker)
    assert due(redis_client) == eta


def test_a_ready_message_without_a_place_is_ready_again_wherever_the_clock_steps(clock, broker, redis_client):
    broker.declare("q")
    broker.publish("q", b"1")
    redis_client.delete("queue:{q}")
    clock.step(-HOUR_S)
    repair_after_loss(broker)
    assert broker.bodies("q") == [b"1"]


def test_a_message_of_an_ageing_queue_gets_back_its_own_place(broker, redis_client):
    broker.declare("q", arguments=AGEING)
    broker.publish("q", b"1", rank=100)
    before = redis_client.zrange("queue:{q}", 0, -1, withscores=True)
    redis_client.delete("queue:{q}")
    repair_after_loss(broker)
    assert redis_client.zrange("queue:{q}", 0, -1, withscores=True) == before
