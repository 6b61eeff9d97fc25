"""A consumer without messages waits for the wake-ups of its queues."""

from __future__ import annotations


def wakeup(world, queue):
    return world.session.keys.queue(queue).wakeup


def test_a_consumer_waits_for_the_wake_ups_of_its_queues(consuming):
    world = consuming()
    world.channel("q", "r", prefetch=1)
    world.drain()
    assert set(world.session.waiter.waiting) == {wakeup(world, "q"), wakeup(world, "r")}


def test_a_wake_up_causes_a_claim(consuming):
    world = consuming()
    world.channel("q", prefetch=1)
    world.drain()
    world.broker.publish("q", "a")
    assert world.drain() == []
    world.session.waiter.comes(wakeup(world, "q"))
    assert world.drain() == ["a"]


def test_a_channel_without_credit_does_not_wait_for_its_queues(consuming):
    world = consuming()
    world.broker.publish("q", "a")
    world.channel("q", prefetch=1)
    world.channel("r", prefetch=1)
    world.drain()
    assert world.session.waiter.waiting == (wakeup(world, "r"),)


def test_a_wake_up_for_a_channel_without_credit_is_passed_on(consuming):
    world = consuming()
    channel = world.channel("q", prefetch=1)
    world.drain()
    world.broker.publish("q", "a")
    channel.basic_qos(prefetch_count=1)
    channel.qos.can_consume = lambda: False
    world.session.waiter.comes(wakeup(world, "q"))
    assert world.drain() == []
    assert world.session.waiter.passed_on == [wakeup(world, "q")]


def test_the_end_of_the_wait_is_a_reason_to_look_at_every_queue(consuming):
    world = consuming()
    world.channel("q", "r", prefetch=2)
    world.drain()
    world.broker.publish("q", "a")
    world.broker.publish("r", "b")
    world.session.waiter.comes(None)
    assert sorted(world.drain()) == ["a", "b"]


def test_an_idle_worker_claims_nothing_at_the_end_of_its_wait(consuming):
    world = consuming()
    world.channel("q", prefetch=1)
    world.channel("r", prefetch=1)
    world.drain()
    world.broker.made.clear()
    world.session.waiter.comes(None)
    assert world.drain() == []
    assert world.broker.made == []


def test_a_new_consumer_is_waited_for_as_well(consuming):
    world = consuming()
    channel = world.channel("q", prefetch=1)
    world.drain()
    channel.basic_consume("r", no_ack=False, callback=world.messages.append, consumer_tag="r")
    world.drain()
    assert set(world.session.waiter.waiting) == {wakeup(world, "q"), wakeup(world, "r")}
