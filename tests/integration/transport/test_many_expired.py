"""Many messages of a queue expired, or vanished, while nobody swept it: claims pass them in bounded steps, and go on."""

from __future__ import annotations

import kombu
import pytest

from tests.support.filling import fill_with_expired
from tests.support.inbox import Inbox, declare, publish

#: More than one claim looks at.
MANY = 2_000
#: What one claim looks at.
BOUND = 500
#: More than claims look at in the time for which a drain goes on.
FOR_LONG = 30_000


@pytest.fixture
def expired(connect, redis_client):
    """Have `count` expired messages in the queue `q`, which has these arguments, and a good one behind them."""

    def make(count=MANY, **arguments):
        channel = connect().channel()
        fill_with_expired(channel, redis_client, count, **arguments)
        return channel

    return make


@pytest.mark.parametrize("arguments", [{}, {"x-max-unacked": 5}, {"x-single-active-consumer": True}], ids=str)
def test_a_consumer_gets_the_message_behind_them_without_a_wakeup(expired, arguments):
    assert Inbox(expired(**arguments), "q" if not arguments else queue("q", arguments), prefetch=1).drain(1) == ["honey"]


@pytest.mark.parametrize("arguments", [{}, {"x-max-unacked": 5}], ids=str)
def test_a_get_returns_the_message_behind_them(expired, arguments):
    assert expired(**arguments).basic_get("q", no_ack=True).payload == "honey"


@pytest.mark.parametrize("prefetch", [1, 100])
def test_another_queue_of_the_consumer_is_served_meanwhile(expired, redis_client, prefetch):
    channel = expired()
    declare(channel, "r")
    publish(channel, "r", "bread")
    # No sweep takes them: only claims do.
    inbox = Inbox(channel, "q", "r", prefetch=prefetch)
    assert inbox.drain(1) == ["bread"]
    assert redis_client.zcard("queue:{q}") > BOUND


def test_a_drain_ends_with_its_time_while_there_is_more_to_look_through(expired):
    channel = expired(FOR_LONG)
    inbox = Inbox(channel, "q")
    assert not inbox.pump(0.0)
    assert inbox.drain(1) == ["honey"]


def queue(name, arguments):
    return kombu.Queue(name, durable=True, queue_arguments=arguments)
