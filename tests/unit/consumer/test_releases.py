"""Messages that a consumer will not settle go back: unseen ones from the buffer, seen ones from its deliveries."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.settlement import Settlement


def test_a_close_releases_what_was_claimed(consuming):
    world = consuming()
    world.broker.publish("q", *"abcd")
    channel = world.channel("q", prefetch=3)
    assert world.drain(1) == ["a"]
    channel.close()
    assert dict(map(reversed, world.broker.settled)) == {
        "a": Settlement.RELEASE_SEEN, "b": Settlement.RELEASE_UNSEEN, "c": Settlement.RELEASE_UNSEEN,
    }  # fmt: skip
    assert sorted(world.waiting("q")) == [*"abcd"]
    assert len(world.unacked) == 0


def test_a_cancel_releases_what_was_claimed_from_its_queue(consuming):
    world = consuming()
    world.broker.publish("q", "q1", "q2")
    world.broker.publish("r", "r1", "r2")
    channel = world.channel("q", "r", prefetch=10)
    world.drain(1)
    channel.basic_cancel("q")
    assert world.waiting("q") == ["q2"]
    assert world.waiting("r") == []
    assert world.drain() == ["r1", "r2"]


def test_another_channel_keeps_its_messages_when_one_closes(consuming):
    world = consuming()
    world.broker.publish("q", "q1", "q2")
    world.broker.publish("r", "r1", "r2")
    first = world.channel("q", prefetch=2)
    world.channel("r", prefetch=2)
    assert world.drain(1) == ["q1"]
    world.loop.server.fetcher.claim()
    first.close()
    assert world.drain() == ["r1", "r2"]
    assert sorted(world.unacked.tags()) == ["r1", "r2"]


def test_a_recover_releases_what_was_delivered(consuming):
    world = consuming()
    world.broker.publish("q", *"ab")
    channel = world.channel("q", prefetch=2)
    world.drain()
    channel.basic_recover(requeue=True)
    assert [settlement for settlement, _ in world.broker.settled] == [Settlement.RELEASE_SEEN] * 2
    assert sorted(world.waiting("q")) == ["a", "b"]


def test_a_message_is_settled_once(consuming):
    world = consuming()
    world.broker.publish("q", "a")
    channel = world.channel("q", prefetch=1)
    world.drain()
    channel.basic_ack("a")
    channel.basic_reject("a", requeue=True)
    channel.close()
    assert world.broker.settled == [(Settlement.ACK, "a")]


def test_an_ack_of_several_covers_what_was_delivered_before(consuming):
    world = consuming()
    world.broker.publish("q", *"abcd")
    channel = world.channel("q", prefetch=4)
    world.drain()
    channel.basic_ack("c", multiple=True)
    assert [tag for _, tag in world.broker.settled] == ["a", "b", "c"]
    assert world.unacked.tags() == ["d"]


def test_a_broken_connection_leaves_its_messages_to_maintenance(consuming):
    world = consuming()
    world.broker.publish("q", *"abc")
    channel = world.channel("q", prefetch=3)
    world.drain(1)
    world.session.broken = True
    channel.close()
    assert world.broker.settled == []
    assert {one.tag: one.settlement for one in world.unacked.take_deferred()} == {
        "b": Settlement.RELEASE_UNSEEN, "c": Settlement.RELEASE_UNSEEN,
    }  # fmt: skip
    assert [one.tag for one in world.unacked.orphaned()] == ["a"]
    assert list(world.unacked.broken_sessions().values()) == [frozenset({"q"})]


def test_an_ack_over_a_broken_connection_is_deferred(consuming):
    world = consuming()
    world.broker.publish("q", "a")
    world.channel("q", prefetch=1)
    world.drain()
    world.session.broken = True
    world.ack("a")
    assert [(one.tag, one.settlement) for one in world.unacked.take_deferred()] == [("a", Settlement.ACK)]


def test_a_message_that_is_acked_through_another_channel_frees_the_credit_of_its_own(consuming):
    world = consuming()
    world.broker.publish("q", *"ab")
    world.channel("q", prefetch=1)
    other = world.channel("r")
    assert world.drain() == ["a"]
    other.basic_ack("a")
    assert world.drain() == ["b"]


def test_a_message_that_two_channels_have_claimed_is_delivered_once_though_it_is_acked_in_between(consuming):
    world = consuming()
    first, second = world.channel("q", prefetch=1), world.channel("q", prefetch=1)
    world.broker.publish("q", "a")
    world.loop.server.fetcher.claim()
    # Its lease ended, and it is claimed once more, by the other channel.
    world.broker.publish("q", "a")
    world.loop.server.fetcher.claim()
    assert [[one.tag for one in channel.queue_consumers.buffer] for channel in (first, second)] == [["a"], ["a"]]
    assert world.drain(1) == ["a"]
    world.ack("a")
    world.session.acknowledger.flush()
    assert len(world.unacked) == 0
    assert world.drain() == []


def test_a_message_that_was_buffered_twice_is_got_once(consuming):
    world = consuming()
    channel = world.channel("q", prefetch=1)
    world.channel("q", prefetch=1)
    world.broker.publish("q", "a")
    world.loop.server.fetcher.claim()
    world.broker.publish("q", "a")
    world.loop.server.fetcher.claim()
    assert channel.basic_get("q").delivery_tag == "a"
    assert world.drain() == []
    assert channel.basic_get("q") is None


def test_a_delivered_message_is_known_to_kombus_quality_of_service_until_it_is_settled(consuming):
    world = consuming()
    world.broker.publish("q", "a")
    channel = world.channel("q", prefetch=1)
    world.drain()
    assert channel.qos.get("a") is world.messages[0]
    world.ack("a")
    with pytest.raises(KeyError):
        channel.qos.get("a")


def test_a_message_that_is_given_back_while_it_is_read_is_not_delivered(consuming):
    world = consuming()
    world.broker.publish("q", "a")
    world.channel("q", prefetch=1)
    world.loop.server.fetcher.claim()
    # Another thread finds the connection broken.
    world.session.acknowledger.begin = lambda unacked: world.unacked.abandon("me", {"q"})
    assert world.drain() == []
    assert [(one.tag, one.settlement) for one in world.unacked.take_deferred()] == [("a", Settlement.RELEASE_UNSEEN)]
