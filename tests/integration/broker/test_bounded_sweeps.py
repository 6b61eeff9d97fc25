"""What one sweep looks at is bounded over all its queues together; those that it did not come to are asked again at once."""

from __future__ import annotations

import pytest

from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import ENTRIES_A_SWEEP, Sweeper, SweepLimits
from tests.support.filling import fill
from tests.support.waiting import wait_until

#: More than one call comes to: each kind of work takes half of what is left.
QUEUES = [f"q{number}" for number in range(16)]
#: Messages that are due in each of them.
DUE = ENTRIES_A_SWEEP


@pytest.fixture
def sweeper(broker, redis_client):
    for name in QUEUES:
        broker.declare(name)
        broker.publish(name, b"1", eta="+1")
        of = broker.keys.queue(name)
        fill(redis_client, of, of.delayed, DUE)
    wait_until(
        lambda: redis_client.time()[0] * 1000 > redis_client.zrange(f"delayed:{{{QUEUES[-1]}}}", 0, 0, withscores=True)[0][1]
    )
    sweeper = Sweeper(
        broker.commands, broker.keys, ConsumedQueues(), name="s", limits=SweepLimits(30, None, 5, 1000.0), forward=lambda _: None
    )  # fmt: skip
    sweeper.watch(QUEUES)
    return sweeper


@pytest.fixture
def calls(broker, redis_client, monkeypatch):
    """What each call of the sweep has promoted, by queue."""
    found = []
    call = broker.commands.call

    def noted(what, *arguments):
        before = [redis_client.zcard(f"queue:{{{name}}}") for name in QUEUES]
        reply = call(what, *arguments)
        if what.name == "sweep":
            after = [redis_client.zcard(f"queue:{{{name}}}") for name in QUEUES]
            found.append([now - then for now, then in zip(after, before, strict=True)])
        return reply

    monkeypatch.setattr(broker.commands, "call", noted)
    return found


def test_queues_share_the_bound_of_a_call_and_each_is_served(sweeper, calls, redis_client):
    total = DUE * len(QUEUES)
    while sum(map(sum, calls)) < total:
        sweeper.run()
        assert len(calls) < 10 * total / ENTRIES_A_SWEEP, "the sweep does not come to its end"
    assert all(0 < sum(call) <= ENTRIES_A_SWEEP for call in calls)
    assert 0 in calls[0], "the first call came to all of them: the test needs more queues"
    # None waits for the end of another.
    assert all(any(call[number] for call in calls[: len(QUEUES)]) for number in range(len(QUEUES)))
    assert [redis_client.zcard(f"queue:{{{name}}}") for name in QUEUES] == [DUE] * len(QUEUES)


def test_those_that_the_call_did_not_come_to_are_still_taken_over(sweeper, calls, redis_client):
    for name in QUEUES:
        redis_client.hset(f"meta:{{{name}}}", mapping={"sweeper": "another", "lease": 10**15, "swept": 1})
        sweeper.run_soon(name)
    while not all(redis_client.zcard(f"queue:{{{name}}}") for name in QUEUES):
        sweeper.run()
        assert len(calls) < len(QUEUES), "the takeover of some was forgotten"
    assert len(calls) > 1
