"""The server's clock steps back: what waits for a time of its own does not wait longer; a moment is a moment."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.maintenance import sweeper as sweeper_module
from celery_redis_plus.stored_message import Outgoing
from tests.integration.clock.conftest import sweeper_of
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

HOUR_S = 3600
DELAY_MS = 5000
#: Milliseconds that a test may take between two looks at the clock.
SLACK_MS = 2000


def swept(broker):
    """Have the queue `q` swept once; return its sweeper."""
    sweeper = sweeper_of(broker, "s")
    sweeper.run()
    return sweeper


def sweep_again(sweeper):
    sweeper.run_soon()
    sweeper.run()


def waits_ms(client, clock):
    """Return how long the only delayed message of `q` still waits."""
    ((_, due),) = client.zrange("delayed:{q}", 0, -1, withscores=True)
    return due - clock.now_ms


def failed(broker):
    broker.publish("q", b"1")
    broker.settle(Settlement.FAIL, *broker.claim("q"))


def sent_back_twice(broker):
    broker.publish("q", b"1")
    for _ in range(2):
        broker.settle(Settlement.REQUEUE, *broker.claim("q"))


def rescheduled(broker, eta):
    broker.publish("q", b"1", eta="+90000")
    (tag,) = broker.client.zrange("delayed:{q}", 0, -1)
    assert Messages(broker.commands, broker.keys, dead_letter_max=5).reschedule("q", tag.decode(), eta)


BACKOFF = {"x-delayed-retry-min": DELAY_MS, "x-delayed-retry-max": DELAY_MS}


@pytest.mark.parametrize(
    ("arguments", "act", "most_ms"),
    [
        pytest.param({}, lambda broker: broker.publish("q", b"1", eta=f"+{DELAY_MS}"), DELAY_MS, id="published"),
        pytest.param(
            {"x-priority-ageing": 60_000}, lambda broker: broker.publish("q", b"1", eta=f"+{DELAY_MS}"), DELAY_MS, id="ageing"
        ),
        pytest.param(BACKOFF, failed, DELAY_MS, id="retry"),
        pytest.param({}, sent_back_twice, 50, id="pause of a requeued message"),
        pytest.param({}, lambda broker: rescheduled(broker, f"+{DELAY_MS}"), DELAY_MS, id="rescheduled"),
    ],
)
def test_a_message_waits_for_its_own_delay_at_most(clock, broker, redis_client, arguments, act, most_ms):
    broker.declare("q", arguments=arguments)
    act(broker)
    sweeper = swept(broker)
    clock.step(-HOUR_S)
    sweep_again(sweeper)
    assert waits_ms(redis_client, clock) <= most_ms
    clock.step((most_ms + SLACK_MS) / 1000)
    sweep_again(sweeper)
    # It stands before what was published after the step.
    broker.publish("q", b"2")
    assert broker.bodies("q") == [b"1", b"2"]


@pytest.mark.parametrize("swept_before", [True, False])
def test_it_does_where_nobody_has_swept_the_queue_since_its_publish(clock, broker, redis_client, swept_before):
    """No worker ran, as during a deployment: only the publish tells that the clock was ahead."""
    broker.declare("q")
    sweeper = swept(broker) if swept_before else sweeper_of(broker, "s")
    clock.step(2 * HOUR_S)
    broker.publish("q", b"1", eta=f"+{DELAY_MS}")
    clock.step(-HOUR_S)
    sweep_again(sweeper)
    assert waits_ms(redis_client, clock) <= DELAY_MS
    clock.step(-HOUR_S / 2)
    sweep_again(sweeper)
    assert waits_ms(redis_client, clock) <= DELAY_MS


def test_the_step_is_dealt_with_once(clock, broker, redis_client):
    broker.declare("q")
    broker.publish("q", b"1", eta=f"+{DELAY_MS}")
    clock.step(-HOUR_S)
    sweeper = swept(broker)
    (tag,) = redis_client.zrange("delayed:{q}", 0, -1)
    redis_client.zadd("delayed:{q}", {tag: clock.now_ms + 10 * DELAY_MS})
    broker.publish("q", b"2")
    sweep_again(sweeper)
    assert waits_ms(redis_client, clock) > DELAY_MS


def test_a_message_that_is_published_after_the_step_waits_for_its_whole_delay(clock, broker, redis_client):
    broker.declare("q")
    broker.publish("q", b"0", eta="+90000")
    sweeper = swept(broker)
    clock.step(-HOUR_S)
    redis_client.delete("delayed:{q}")
    broker.publish("q", b"1", eta=f"+{DELAY_MS}")
    sweep_again(sweeper)
    assert DELAY_MS - SLACK_MS < waits_ms(redis_client, clock) <= DELAY_MS
    redis_client.flushdb()


@pytest.mark.parametrize("act", [
    pytest.param(lambda broker, eta: broker.publish("q", b"1", eta=eta), id="published"),
    pytest.param(rescheduled, id="rescheduled"),
])  # fmt: skip
def test_a_message_with_an_eta_stays_until_then(clock, broker, redis_client, act):
    broker.declare("q")
    eta = clock.now_ms + 60_000
    act(broker, eta)
    sweeper = swept(broker)
    clock.step(-HOUR_S)
    sweep_again(sweeper)
    assert redis_client.zrange("delayed:{q}", 0, -1, withscores=True)[0][1] == eta
    clock.step(HOUR_S + 50)
    sweep_again(sweeper)
    assert broker.bodies("q") == []
    clock.step(20)
    sweep_again(sweeper)
    assert broker.bodies("q") == [b"1"]


def test_delayed_messages_become_due_by_the_size_of_a_step_forward_earlier(clock, broker):
    broker.declare("q")
    broker.publish("q", b"1", eta=clock.now_ms + (HOUR_S - 60) * 1000)
    broker.publish("q", b"2", eta=f"+{(HOUR_S - 60) * 1000}")
    broker.publish("q", b"3", eta=f"+{(HOUR_S + 60) * 1000}")
    sweeper = swept(broker)
    clock.step(HOUR_S)
    sweep_again(sweeper)
    assert sorted(broker.bodies("q")) == [b"1", b"2"]


def test_more_delayed_messages_than_a_pass_looks_at_are_all_served_between_etas(clock, broker, redis_client, monkeypatch):
    monkeypatch.setattr(sweeper_module, "ENTRIES_A_SWEEP", 20)
    broker.declare("q")
    eta = clock.now_ms + HOUR_S * 1000
    # A set of over 128 entries is read in pages.
    for number in range(150):
        broker.publish("q", b"%d" % number, eta=eta if number % 2 else f"+{DELAY_MS}")
    sweeper = swept(broker)
    clock.step(-HOUR_S)
    passes = 0
    while int(redis_client.hget("meta:{q}", "swept")) > clock.now_ms:
        sweep_again(sweeper)
        passes += 1
        assert passes < 150 / 20 * 3, "the walk does not end"
    assert passes > 1
    assert redis_client.zcount("delayed:{q}", "-inf", clock.now_ms + DELAY_MS) == 75
    assert redis_client.zcount("delayed:{q}", eta, eta) == 75
    assert redis_client.hget("meta:{q}", "rebase_cursor") is None


def test_a_second_step_amid_the_walk_begins_it_anew(clock, broker, redis_client, monkeypatch):
    monkeypatch.setattr(sweeper_module, "ENTRIES_A_SWEEP", 20)
    broker.declare("q")
    for number in range(150):
        broker.publish("q", b"%d" % number, eta=f"+{DELAY_MS}")
    sweeper = swept(broker)
    for _ in range(2):
        clock.step(-HOUR_S)
        sweep_again(sweeper)
        sweep_again(sweeper)
        assert redis_client.hget("meta:{q}", "rebase_cursor")
    while int(redis_client.hget("meta:{q}", "swept")) > clock.now_ms:
        sweep_again(sweeper)
    assert redis_client.zcount("delayed:{q}", "-inf", clock.now_ms + DELAY_MS) == 150


def test_a_delay_ends_with_the_wait(clock, broker, redis_client):
    broker.declare("q", arguments=BACKOFF)
    broker.publish("q", b"1", eta="+1")
    (tag,) = redis_client.zrange("delayed:{q}", 0, -1)
    key = b"message:{q}:" + tag
    assert redis_client.hget(key, "delay") == b"1"
    clock.step(1)
    sweeper = swept(broker)
    assert not redis_client.hexists(key, "delay")
    (message,) = broker.claim("q")
    broker.settle(Settlement.FAIL, message)
    assert int(redis_client.hget(key, "delay")) == DELAY_MS
    messages = Messages(broker.commands, broker.keys, dead_letter_max=5)
    assert messages.reschedule("q", tag.decode(), clock.now_ms + 60_000)
    assert not redis_client.hexists(key, "delay")
    assert messages.reschedule("q", tag.decode(), "+5000")
    messages.cancel("q", [tag.decode()], dead_letter=True)
    assert not redis_client.hexists(key, "delay")
    sweep_again(sweeper)


@pytest.mark.parametrize("life", ["x-message-ttl", "expiration"])
@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_message_expires_by_the_clock_wherever_it_steps(clock, broker, redis_client, life, step_s):
    """It lives longer, or less long, by the size of the step."""
    ttl_ms = 60_000
    broker.declare("q", arguments={"x-message-ttl": ttl_ms} if life == "x-message-ttl" else {})
    outgoing = Outgoing(b"{}", b"1", 255, 0, life=f"+{ttl_ms}" if life == "expiration" else "")
    broker.publisher.to_queue("q", outgoing, PublishAttempt())
    sweeper = swept(broker)
    clock.step(step_s)
    sweep_again(sweeper)
    assert redis_client.zcard("queue:{q}") == (1 if step_s < 0 else 0)
    if step_s < 0:
        clock.step(HOUR_S)
        sweep_again(sweeper)
        assert redis_client.zcard("queue:{q}") == 1
        clock.step(ttl_ms / 1000)
        sweep_again(sweeper)
    assert broker.bodies("q") == []
    assert redis_client.zcard("dead:{q}") == 1


def test_the_life_of_a_delayed_message_begins_when_its_own_delay_ends(clock, broker, redis_client):
    """What a message lives is counted from when it is ready; its delay is served before, as it was meant."""
    broker.declare("q")
    outgoing = Outgoing(b"{}", b"1", 255, f"+{DELAY_MS}", life="+60000")
    broker.publisher.to_queue("q", outgoing, PublishAttempt())
    sweeper = swept(broker)
    clock.step(-HOUR_S)
    sweep_again(sweeper)
    clock.step(DELAY_MS / 1000 + 1)
    sweep_again(sweeper)
    ((_, expires),) = redis_client.zrange("expiry:{q}", 0, -1, withscores=True)
    assert 60_000 - SLACK_MS < expires - clock.now_ms <= 60_000


def test_a_delayed_message_comes_in_time_over_living_connections(clock, connect, redis_client):
    inbox = Inbox(connect(visibility_timeout=6).channel(), "q")
    publish(inbox.channel, "q", 1, headers={"x-delay": 1500})
    wait_until(lambda: redis_client.hget("meta:{q}", "swept"))
    clock.step(-HOUR_S)
    inbox.drain(1, timeout_s=1.5 + SLACK_MS / 1000 + 2)
