"""What a consumer has in hand when its process stood still."""

from __future__ import annotations

from tests.support.inbox import Inbox, publish


def test_after_a_standstill_a_buffered_message_that_others_have_is_not_delivered(connect, redis_client):
    """A frozen process delivers nothing of what it had in hand, before it has asked."""
    channel = connect().channel()
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", *range(3))
    inbox.drain(1)
    # Or a heartbeat asks for us.
    channel.session.service.stop()
    unacked_messages = channel.session.service.unacked_messages
    (one, other) = [unacked_messages.find(claimed.tag) for claimed in channel.queue_consumers.buffer]
    for held in (one, other):
        held.confirmed_at -= 1000
    redis_client.hincrby(channel.session.keys.queue("q").message + one.tag.encode(), "claim", 1)
    assert inbox.rest() == [0, 2]
    assert unacked_messages.find(one.tag) is None
    assert unacked_messages.find(other.tag) is other
