"""A failover loses acks: the process that has acked the messages does not run them again."""

from __future__ import annotations

from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def state_of(client):
    return {key: (client.dump(key), max(client.pttl(key), 0)) for key in client.keys("*")}


def restore(client, state):
    client.flushdb()
    for key, (value, ttl) in state.items():
        client.restore(key, ttl, value)


def test_messages_whose_acks_a_failover_lost_are_acked_again_and_not_delivered(connect, redis_client):
    channel = connect(visibility_timeout=3).channel()
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", *range(3))
    inbox.drain(3)
    replica = state_of(redis_client)
    for message in inbox.messages:
        message.ack()
    wait_until(lambda: not inbox.pump(0.05) and not redis_client.keys("message:*"))
    restore(redis_client, replica)
    wait_until(lambda: not inbox.pump(0.05) and not redis_client.keys("message:*"))
    assert inbox.bodies == [0, 1, 2]
    assert channel.queue_sizes("q").unacked == channel.queue_sizes("q").ready == 0


def test_one_that_was_rejected_with_requeue_or_replayed_comes_again_under_its_tag(channel):
    declare(channel, "q")
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "m")
    inbox.drain(1)
    inbox.messages[0].requeue()
    inbox.drain(2)
    inbox.messages[1].reject()
    [letter] = wait_until(lambda: not inbox.pump(0.05) and dead_letters_of(channel).page("q"))
    assert dead_letters_of(channel).replay(letter)
    inbox.drain(3)
    assert len({message.delivery_tag for message in inbox.messages}) == 1
