"""The server's clock steps back, and a consumer, an asker or a waiting publisher dies: its turn lasts no longer."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.consumers.processes import Processes, ProcessRecord
from celery_redis_plus.broker.consumers.registry import Consumer, Consumers
from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from celery_redis_plus.broker.publishing.delivery_store import About, DeliveryStore
from celery_redis_plus.errors import AccessRefused
from tests.support.inbox import declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

DAY_S = 86_400
TIMEOUT_S, LEASE_S = 4.0, 3.0
#: What each living process has for its next heartbeats, after a pause or a step.
RESUMING_S = 5.0
#: What a busy machine may take besides.
SLACK_S = 1.5
SINGLE = {"x-single-active-consumer": True}


def crew_of(broker, process="living", timeout_s=TIMEOUT_S):
    return Consumers(broker.commands, broker.keys, process=process, timeout_s=timeout_s)


def beat(broker, process="living"):
    """Send the heartbeat of a process, which leads where none does."""
    record = ProcessRecord("run", (), 5.0, (process,), ("q",), "host", 1).encode()
    registry = Processes(broker.commands, broker.keys, delivery_limit=None, dead_letter_max=5)
    registry.beat(process, record, may_lead=process == "living", asks=True, lease_s=LEASE_S, version="", next_s=1)


def listed(client):
    return client.zrange("consumers:{q}", 0, -1)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "dead"),
    [
        pytest.param(SINGLE, {}, id="single active"),
        pytest.param({}, {"priority": 10}, id="priority"),
        pytest.param({}, {}, id="plain"),
    ],
)
def test_a_dead_consumer_is_off_the_list_within_its_timeout(clock, broker, redis_client, arguments, dead):
    broker.declare("q", arguments=arguments)
    crew = crew_of(broker)
    living = Consumer("living.1", "q", "2")
    crew_of(broker, "dead").join(Consumer("dead.1", "q", "1", **dead))
    crew.join(living)
    for process in ("dead", "living"):
        beat(broker, process)
    clock.step(-DAY_S)

    def alone():
        beat(broker)
        crew.check_listed([living])
        return listed(redis_client) == [b"living.1"]

    wait_until(alone, RESUMING_S + SLACK_S, interval_s=TIMEOUT_S / 12)
    broker.publish("q", b"x")
    if arguments or dead:
        taken = broker.claim_commands.claim_restricted("q", 1, living.id, credit=1, activations=b"2" if arguments else b"")
        assert [message.body for message in taken.messages] == [b"x"]


def test_an_exclusive_consumer_that_died_does_not_keep_the_queue(clock, broker):
    broker.declare("q")
    crew_of(broker, "dead").join(Consumer("dead.1", "q", "1", exclusive=True))
    for process in ("dead", "living"):
        beat(broker, process)
    clock.step(-DAY_S)

    def joined():
        beat(broker)
        try:
            crew_of(broker).join(Consumer("living.1", "q", "2", exclusive=True))
        except AccessRefused:
            return False
        return True

    wait_until(joined, RESUMING_S + SLACK_S, interval_s=0.1)


def test_a_living_consumer_with_a_longer_timeout_stays_on_the_list(clock, broker, redis_client):
    broker.declare("q")
    hasty = Consumer("living.1", "q", "2")
    crew_of(broker, "patient", 60).join(Consumer("patient.1", "q", "1"))
    crew_of(broker, "dead").join(Consumer("dead.1", "q", "1"))
    crew_of(broker).join(hasty)
    for process in ("patient", "dead", "living"):
        beat(broker, process)
    for _ in range(4):
        # Each within the time in which somebody has to be heard.
        clock.step(LEASE_S - 0.5)
        beat(broker)
        crew_of(broker).check_listed([hasty])
    assert sorted(listed(redis_client)) == [b"living.1", b"patient.1"]


def test_the_end_of_a_pause_is_told_as_it_was_meant(clock, broker):
    broker.declare("q")
    crew = crew_of(broker)
    Pausing(broker.commands, broker.keys).pause("q", "why", for_s=20)
    crew.join(Consumer("living.1", "q", "1"))
    clock.step(-DAY_S)
    assert broker.claim_commands.claim_restricted("q", 1, "living.1", credit=1, activations=b"").wait_s <= 20


def test_one_that_is_outranked_comes_again_as_soon_as_ever(clock, broker):
    broker.declare("q")
    broker.publish("q", b"x")
    crew = crew_of(broker)
    high, low = Consumer("high.1", "q", "1", priority=10), Consumer("low.1", "q", "2")
    crew.join(high)
    crew.join(low)

    def claim():
        return broker.claim_commands.claim_restricted("q", 1, "low.1", credit=1, activations=b"")

    assert claim().wait_s == 1
    clock.step(-DAY_S)
    assert claim().wait_s == 1


def test_a_rate_goes_on(clock, broker):
    broker.declare("q", arguments={"x-rate-limit": 20})
    broker.publish("q", *[b"x"] * 4)
    crew = crew_of(broker)
    crew.join(Consumer("living.1", "q", "1"))

    def claim():
        return broker.claim_commands.claim_restricted("q", 3, "living.1", credit=3, activations=b"")

    assert len(claim().messages) == 2
    clock.step(-DAY_S)
    assert claim().wait_s <= 0.06
    wait_until(lambda: claim().messages, 1)


def test_a_waiting_publisher_that_died_keeps_no_place_from_others(clock, connect, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments={"x-max-length": 1, "x-overflow": "block"})
    publish(channel, "q", 1)
    channel.basic_get("q", no_ack=True)
    redis_client.zadd("waiting_publishers:{q}", {"dead": 1})
    redis_client.zadd("waiting_publishers:{q}:seen", {"dead": clock.now_ms})
    clock.step(-DAY_S)
    start = machine_time()
    publish(channel, "q", 1)
    assert machine_time() - start < 3 + SLACK_S


def test_a_dead_fanout_subscriber_is_found_within_its_timeout(clock, broker, redis_client):
    keys = broker.keys.fanout("news", "/0.")
    registry = SubscriberRegistry(broker.commands, timeout_s=TIMEOUT_S, max_age_s=None)
    position = registry.subscribe(keys, "q", durable=False)
    registry.heartbeat(keys, [position])
    clock.step(-DAY_S)
    registry.reap(keys)
    (one,) = registry.subscribers(keys)
    assert one.deadline_ms <= one.now_ms + TIMEOUT_S * 1000


def test_a_death_of_a_fanout_subscriber_is_told_to_who_looked_before_the_step(clock, broker, redis_client):
    keys = broker.keys.fanout("news", "/0.")
    registry = SubscriberRegistry(broker.commands, timeout_s=0, max_age_s=None)
    since_ms, _ = registry.reap(keys)
    clock.step(-DAY_S)
    registry.heartbeat(keys, [registry.subscribe(keys, "q", durable=False)])
    registry.reap(keys)
    redis_client.zadd(keys.subscribers, dict.fromkeys(redis_client.zrange(keys.subscribers, 0, -1), 0))
    _, deaths = registry.reap(keys, since_ms)
    assert [death.queue for death in deaths] == ["q"]


def test_a_tracked_delivery_is_overdue_in_the_time_that_it_was_given(clock, broker):
    tracks = DeliveryStore(broker.commands, broker.keys)
    tracks.begin("t", About("", "q", False), ["q"], 5.0)
    clock.step(-DAY_S)
    assert 0 < tracks.overdue("t", "asker") <= 5


def test_one_who_asked_for_the_overdue_and_died_is_followed_by_another(clock, broker):
    tracks = DeliveryStore(broker.commands, broker.keys)
    tracks.begin("t", About("", "q", False), ["q"], 0.0)
    assert tracks.overdue("t", "dead").recipients
    clock.step(-DAY_S)
    wait_until(lambda: not isinstance(tracks.overdue("t", "living"), float))
