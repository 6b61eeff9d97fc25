"""The server's clock steps forward while every connection lives: chrony's makestep, a restored machine."""

from __future__ import annotations

import pytest

from tests.integration.clock.conftest import sweeper_of
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

HOUR_S = 3600


def swept_after_the_grace(client, clock):
    """Return whether a sweep has passed that was free to recover."""
    swept, grace = (int(value or 0) for value in client.hmget("meta:{q}", "swept", "grace"))
    return grace > clock.now_ms - HOUR_S * 900 and swept >= grace


def holds(client):
    return client.zcard("queue:{q}"), client.zcard("messages_index:{q}")


@pytest.mark.parametrize("visibility_timeout", [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.weekly])])
def test_a_living_worker_keeps_its_work_when_the_clock_steps_forward(clock, connect, redis_client, visibility_timeout):
    inbox = Inbox(connect(visibility_timeout=visibility_timeout).channel(), "q", ack=False)
    publish(inbox.channel, "q", 1)
    inbox.drain(1)
    wait_until(lambda: redis_client.hget("meta:{q}", "swept"))
    clock.step(HOUR_S)
    wait_until(lambda: swept_after_the_grace(redis_client, clock), timeout_s=20)
    assert holds(redis_client) == (0, 1)
    assert redis_client.hget("meta:{q}", "recovered") is None
    (message,) = inbox.messages
    message.ack()
    wait_until(lambda: holds(redis_client) == (0, 0))


def test_a_step_before_the_first_sweep_of_a_message_is_noticed(clock, connect, redis_client):
    inbox = Inbox(connect(visibility_timeout=6).channel(), "q", ack=False)
    publish(inbox.channel, "q", 1)
    inbox.drain(1)
    clock.step(HOUR_S)
    wait_until(lambda: swept_after_the_grace(redis_client, clock), timeout_s=10)
    assert holds(redis_client) == (0, 1)


def extended(client):
    """Return a function that tells whether the lease of the one message has been extended meanwhile."""
    ((_, first),) = client.zrange("messages_index:{q}", 0, -1, withscores=True)
    return lambda: client.zrange("messages_index:{q}", 0, -1, withscores=True)[0][1] > first


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("holder_s", "sweeper_s", "step_s"),
    [
        pytest.param(3, 300, 20, id="the step is no outage by the sweeper's own timeout"),
        pytest.param(60, 3, HOUR_S, id="the grace by the sweeper's own timeout ends before the next heartbeat"),
    ],
)
def test_a_sweeper_goes_by_the_timeouts_of_those_that_hold_the_messages(
    *, clock, broker, connect, redis_client, holder_s, sweeper_s, step_s
):
    inbox = Inbox(connect(visibility_timeout=holder_s).channel(), "q", ack=False)
    publish(inbox.channel, "q", 1)
    inbox.drain(1)
    wait_until(extended(redis_client), timeout_s=20)
    sweeper = sweeper_of(broker, "other", sweeper_s)

    def sweep():
        sweeper.run_soon("q")
        sweeper.run()

    sweep()
    moved = extended(redis_client)
    clock.step(step_s)
    wait_until(lambda: sweep() or holds(redis_client) != (0, 1) or moved(), timeout_s=20)
    assert holds(redis_client) == (0, 1)
    (message,) = inbox.messages
    message.ack()
    wait_until(lambda: holds(redis_client) == (0, 0))
