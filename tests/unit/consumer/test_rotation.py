"""Queues of a channel, and channels of a connection, are claimed from in turn."""

from __future__ import annotations

import pytest


def test_queues_of_a_channel_are_claimed_from_in_turn(consuming):
    world = consuming()
    world.broker.publish("q", "q1", "q2", "q3")
    world.broker.publish("r", "r1", "r2", "r3")
    world.channel("q", "r", prefetch=1)
    came = []
    for _ in range(6):
        came += world.drain()
        world.ack(*came)
    assert came == ["q1", "r1", "q2", "r2", "q3", "r3"]


@pytest.mark.parametrize(("strategy", "expected"), [("sorted", ["a1", "a2", "b1", "b2"]), ("priority", ["b1", "b2", "a1", "a2"])])
def test_an_ordered_strategy_empties_the_first_queue_first(consuming, strategy, expected):
    world = consuming(queue_order_strategy=strategy)
    world.broker.publish("a", "a1", "a2")
    world.broker.publish("b", "b1", "b2")
    world.channel("b", "a", prefetch=1)
    came = []
    for _ in range(4):
        came += world.drain()
        world.ack(*came)
    assert came == expected


def test_messages_of_several_queues_are_delivered_in_turn(consuming):
    world = consuming()
    world.broker.publish("q", "q1", "q2")
    world.broker.publish("r", "r1", "r2")
    world.channel("q", "r", prefetch=4)
    assert world.drain() == ["q1", "r1", "q2", "r2"]


def test_every_one_of_many_queues_is_claimed_from(consuming):
    world = consuming()
    queues = [f"q{number}" for number in range(45)]
    world.channel(*queues, prefetch=1)
    world.drain()
    for queue in queues:
        world.broker.publish(queue, f"{queue}m")
    world.session.waiter.comes(None)
    came = set()
    for _ in range(500):
        tags = world.drain()
        world.ack(*tags)
        came.update(tags)
    assert came == {f"{queue}m" for queue in queues}


def test_channels_of_a_connection_deliver_in_turn(consuming):
    world = consuming()
    world.broker.publish("q", "q1", "q2", "q3")
    world.broker.publish("r", "r1", "r2", "r3")
    world.channel("q", prefetch=3)
    world.channel("r", prefetch=3)
    assert world.drain() == ["q1", "r1", "q2", "r2", "q3", "r3"]


def test_a_busy_channel_asks_for_messages_of_the_others(consuming):
    world = consuming()
    world.channel("q", prefetch=1)
    world.channel("r", prefetch=1)
    world.drain()
    world.broker.publish("q", *map(str, range(20)))
    world.session.waiter.comes(world.session.keys.queue("q").wakeup)
    came = []
    for number in range(20):
        if number == 10:
            # No wake-up comes while the other channel has work.
            world.broker.publish("r", "other")
        tags = world.drain(1)
        world.ack(*tags)
        came += tags
    assert "other" in came


def test_a_channel_without_credit_does_not_hold_up_the_others(consuming):
    world = consuming()
    world.broker.publish("q", "q1", "q2")
    world.broker.publish("r", "r1", "r2")
    world.channel("q", prefetch=1)
    world.channel("r", prefetch=2)
    assert sorted(world.drain()) == ["q1", "r1", "r2"]
