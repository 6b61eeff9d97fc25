"""Queues with rules for their consumers are claimed from one by one, as the server answers for each."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.claims import State
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.errors import ConsumerCancelled


def test_a_queue_that_a_plain_claim_leaves_alone_is_claimed_by_its_rules(consuming):
    world = consuming()
    world.channel("q", prefetch=2)
    world.broker.restricted["q"] = State.OK
    world.broker.publish("q", *"abc")
    assert world.drain() == ["a", "b"]


def test_plain_and_restricted_queues_share_the_credit(consuming):
    world = consuming()
    world.broker.restricted["r"] = State.OK
    world.channel("q", "r", prefetch=4)
    world.broker.publish("q", "q1", "q2", "q3", "q4")
    world.broker.publish("r", "r1", "r2", "r3", "r4")
    assert sorted(world.drain()) == ["q1", "q2", "r1", "r2"]


def test_a_queue_without_rules_any_more_is_plain_again(consuming):
    world = consuming()
    world.broker.restricted["q"] = State.OK
    world.channel("q", prefetch=1)
    world.broker.publish("q", *"ab")
    assert world.drain() == ["a"]
    world.broker.restricted["q"] = State.PLAIN
    world.ack("a")
    assert world.drain() == ["b"]
    del world.broker.restricted["q"]
    world.broker.made.clear()
    world.broker.publish("q", "c")
    world.ack("b")
    world.session.waiter.comes(None)
    assert world.drain() == ["c"]


@pytest.mark.parametrize("state", [State.PAUSED, State.STANDBY, State.OUTRANKED])
def test_a_consumer_that_may_not_take_messages_gets_none(consuming, state):
    world = consuming()
    world.broker.restricted["q"] = state
    world.channel("q", prefetch=1)
    world.broker.publish("q", "a")
    assert world.drain() == []
    assert world.waiting("q") == ["a"]


def test_a_consumer_that_is_not_active_any_more_releases_its_buffer(consuming):
    world = consuming(overfetch_factor=3.0)
    world.broker.restricted["q"] = State.OK
    world.channel("q", prefetch=1)
    world.broker.publish("q", *"ab")
    assert world.drain() == ["a"]
    world.broker.restricted["q"] = State.STANDBY
    world.session.waiter.comes(None)
    assert world.drain() == []
    assert world.broker.settled == [(Settlement.RELEASE_UNSEEN, "b")]
    assert world.waiting("q") == ["b"]


def test_a_queue_is_claimed_from_again_after_the_time_that_the_server_says(consuming):
    world = consuming()
    world.broker.restricted["q"] = State.OUTRANKED
    world.broker.told["wait_s"] = 0.05
    world.channel("q", prefetch=1)
    assert world.drain() == []
    world.broker.restricted["q"] = State.OK
    world.broker.publish("q", "a")
    world.loop.drain(5)
    assert [message.delivery_tag for message in world.messages] == ["a"]


def test_a_consumer_without_credit_has_another_one_look_when_the_time_has_come(consuming):
    world = consuming()
    world.broker.restricted["q"] = State.OK
    world.broker.told["wait_s"] = 0.0
    world.broker.publish("q", "a")
    world.channel("q", prefetch=1)
    assert world.drain() == ["a"]
    world.drain()
    assert world.session.waiter.passed_on == [world.session.keys.queue("q").wakeup_of("")]


def test_what_came_before_an_error_of_a_later_call_is_delivered(consuming, monkeypatch):
    world = consuming()
    world.broker.restricted["q"] = world.broker.restricted["r"] = State.OK
    world.broker.publish("q", "a")
    world.channel("q", "r", prefetch=2)
    claim = world.broker.claim_restricted

    def refused(queue, *arguments, **named):
        if queue == "r":
            raise RuntimeError("refused")
        return claim(queue, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(world.broker, "claim_restricted", refused)
        with pytest.raises(RuntimeError, match="refused"):
            world.drain()
    assert world.drain() == ["a"]


def test_a_consumer_of_a_queue_that_another_connection_owns_ends(consuming):
    world = consuming()
    world.broker.restricted["q"] = State.LOCKED
    channel = world.channel("q", "r", prefetch=2)
    world.broker.publish("q", "a")
    world.broker.publish("r", "b")
    with pytest.raises(ConsumerCancelled):
        world.drain()
    assert world.drain() == ["b"]
    channel.close()
    assert world.waiting("q") == ["a"]


def test_queues_with_priorities_hear_that_the_credit_is_gone(consuming):
    world = consuming()
    world.broker.restricted["q"] = State.OK
    world.broker.told["has_priorities"] = True
    world.channel("q", "r", prefetch=1)
    world.drain()
    world.broker.publish("r", "b")
    world.session.waiter.comes(world.session.keys.queue("r").wakeup)
    assert world.drain() == ["b"]
    assert world.session.suspended == ["q"]
