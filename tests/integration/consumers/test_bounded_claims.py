"""One claim looks at a bounded number of messages that expired, or vanished."""

from __future__ import annotations

from tests.support.filling import fill, fill_with_expired
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import keys_of

#: More than one claim looks at.
MANY = 2_000


#: What one claim looks at.
BOUND = 500


def test_one_claim_looks_at_a_bounded_number(connect, redis_client):
    channel = connect().channel()
    fill_with_expired(channel, redis_client, MANY)
    batch = channel.consumer_session.claim_commands.claim(["q"], 4, share=True)
    assert (batch.messages, batch.more) == ([], ["q"])
    assert redis_client.zcard("queue:{q}") == MANY + 1 - BOUND


def test_vanished_messages_are_passed_in_the_same_steps(connect, redis_client):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "milk")
    of = keys_of("q")
    fill(redis_client, of, of.ready, MANY)
    redis_client.delete(*(of.message + tag for tag in redis_client.zrange(of.ready, 0, -1)))
    publish(channel, "q", "honey")
    channel.consumer_session.claim_commands.claim(["q"], 4, share=True)
    assert redis_client.zcard(of.ready) == MANY + 1 - BOUND
    assert Inbox(channel, "q").drain(1) == ["honey"]
