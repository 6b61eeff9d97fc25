"""A claim takes no more than the channel may deliver."""

from __future__ import annotations

from celery_redis_plus.broker.consumers.settlement import Settlement


def test_a_channel_delivers_as_much_as_its_prefetch_count(consuming):
    world = consuming()
    world.broker.publish("q", *"abcde")
    world.channel("q", prefetch=2)
    assert world.drain() == ["a", "b"]
    assert world.waiting("q") == ["c", "d", "e"]


def test_an_ack_makes_room_for_one_more(consuming):
    world = consuming()
    world.broker.publish("q", *"abcde")
    world.channel("q", prefetch=2)
    world.drain()
    world.ack("a")
    assert world.drain() == ["c"]
    assert world.broker.settled == [(Settlement.ACK, "a")]


def test_claimed_messages_that_are_not_delivered_count_as_well(consuming):
    world = consuming()
    world.broker.publish("q", *"abcde")
    world.channel("q", prefetch=3)
    assert world.drain(1) == ["a"]
    assert world.drain(1) == ["b"]
    assert world.broker.made == [(["q"], 3)]


def test_a_channel_without_a_limit_takes_everything(consuming):
    world = consuming()
    world.broker.publish("q", *map(str, range(250)))
    world.channel("q")
    assert world.drain() == [str(number) for number in range(250)]


def test_a_channel_without_a_limit_has_no_more_in_its_buffer_than_a_claim_brings(consuming):
    world = consuming(overfetch_factor=2.0, fetch_batch_size=4)
    world.broker.publish("q", *map(str, range(40)))
    consumers = world.channel("q").queue_consumers
    fetcher = world.loop.server.fetcher
    for _ in range(20):
        assert world.drain(1)
        fetcher.claim()
        assert len(consumers.buffer) <= 4


def test_overfetched_messages_wait_in_the_buffer(consuming):
    world = consuming(overfetch_factor=2.0)
    world.broker.publish("q", *"abcde")
    world.channel("q", prefetch=2)
    assert world.drain() == ["a", "b"]
    assert world.waiting("q") == ["e"]
    world.ack("a")
    assert world.drain() == ["c"]


def test_messages_consumed_without_acks_need_no_room(consuming):
    world = consuming()
    world.broker.publish("q", *"abcde")
    world.channel("q", prefetch=1, no_ack=True)
    assert world.drain() == [*"abcde"]
    assert len(world.unacked) == 0


def test_a_consumer_that_decides_message_by_message_is_asked_before_each(consuming):
    world = consuming()
    world.broker.publish("q", *"abc")
    channel = world.channel("q", prefetch=10)
    may = [True]
    channel.qos.can_consume = lambda: may[0]
    assert world.drain(1) == ["a"]
    may[0] = False
    assert world.drain() == []
    assert world.waiting("q") == ["b", "c"]


def test_no_claim_is_made_within_the_fetch_interval(consuming):
    world = consuming(min_fetch_interval=9.0)
    world.broker.publish("q", *"ab")
    world.channel("q", prefetch=1)
    assert world.drain() == ["a"]
    world.ack("a")
    assert world.drain() == []
    assert len(world.broker.made) == 1


def test_a_message_that_comes_twice_is_delivered_once(consuming):
    world = consuming()
    world.broker.publish("q", "a")
    world.channel("q", prefetch=2)
    assert world.drain() == ["a"]
    world.broker.publish("q", "a", "b")
    world.session.waiter.comes(None)
    assert world.drain() == ["b"]
    assert sorted(world.unacked.tags()) == ["a", "b"]


def test_a_buffered_message_whose_lease_is_lost_is_not_delivered(consuming):
    world = consuming()
    world.broker.publish("q", *"ab")
    world.channel("q", prefetch=2)
    world.loop.server.fetcher.claim()
    world.unacked.mark_lease_lost("a", 1)
    assert world.drain() == ["b"]
    assert world.unacked.tags() == ["b"]
