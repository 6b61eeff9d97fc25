"""Every key that a script makes for a transient queue goes with it: nothing looks after them when the consumer is gone."""

from __future__ import annotations

import kombu
import pytest

from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

EXPIRES_S = 60


@pytest.fixture
def lasting(redis_client):
    """Return the keys of queue `q` without a TTL."""
    return lambda: {key for key in redis_client.keys("*{q}*") if redis_client.pttl(key) == -1}


@pytest.fixture
def queue(channel):
    queue = kombu.Queue("q", expires=EXPIRES_S, durable=False)
    queue(channel).declare()
    return queue


def test_a_message_that_pauses_after_a_requeue_leaves_no_lasting_key(channel, queue, redis_client, lasting):
    publish(channel, "q", "x")
    message = channel.basic_get("q")
    # It was sent back often, so that the pause lasts 5 s.
    (key,) = redis_client.keys("message:{q}:*")
    redis_client.hset(key, "requeues", 10)
    message.requeue()
    wait_until(lambda: redis_client.zcard("delayed:{q}"))
    assert lasting() == set()


def test_a_cancelled_consumer_leaves_no_lasting_key(channel, queue, redis_client, lasting):
    publish(channel, "q", *range(10), expiration=EXPIRES_S)
    inbox = Inbox(channel, queue, ack=False)
    inbox.drain(1)
    inbox.cancel()
    channel.close()
    wait_until(lambda: redis_client.zcard("queue:{q}") == 10)
    assert redis_client.exists("wakeup:{q}", "expiry:{q}") == 2
    assert lasting() == set()


def test_a_claim_that_leaves_messages_leaves_no_lasting_wakeup(channel, queue, redis_client, lasting):
    publish(channel, "q", *range(10))
    redis_client.delete("wakeup:{q}")
    channel.basic_get("q")
    assert redis_client.exists("wakeup:{q}")
    # The index has its TTL from whoever looks after a queue that is used.
    assert lasting() <= {b"messages_index:{q}"}


def test_a_consumer_that_joins_leaves_no_lasting_key(channel, queue, redis_client, lasting):
    publish(channel, "q", *range(10))
    redis_client.delete("wakeup:{q}")
    channel.basic_qos(0, 1, False)
    channel.basic_consume("q", callback=lambda message: None)
    assert redis_client.exists("wakeup:{q}")
    assert lasting() == set()


def test_a_claim_that_meets_an_expired_message_leaves_no_lasting_key(channel, queue, redis_client, lasting):
    publish(channel, "q", "x", expiration=EXPIRES_S)
    (key,) = redis_client.keys("message:{q}:*")
    redis_client.hset(key, "expires", 1)
    assert channel.basic_get("q") is None
    # The sweep may have been there already.
    assert redis_client.exists("delayed:{q}") or not redis_client.exists(key)
    assert lasting() == set()
