"""`channel.flow`: the consumers of one channel are suspended and go on."""

import kombu
import pytest

from celery_redis_plus import browse
from tests.support.inbox import Inbox, declare, publish


def states(channel):
    return [message.state for message in browse("q", connection=channel)]


def quiet(inbox):
    with pytest.raises(TimeoutError):
        inbox.channel.connection.client.drain_events(timeout=0.3)


def test_suspended_consumers_get_nothing_until_they_go_on(channel):
    declare(channel, "q")
    inbox = Inbox(channel, "q", prefetch=10)
    channel.flow(False)
    publish(channel, "q", 1, 2, 3)
    quiet(inbox)
    assert states(channel) == ["ready"] * 3
    channel.flow(True)
    inbox.drain(3)
    assert [message.payload for message in inbox.messages] == [1, 2, 3]


def test_prefetched_messages_go_to_other_consumers(connect):
    suspended = Inbox(connect().channel(), "q", prefetch=10, ack=False)
    publish(suspended.channel, "q", *range(6))
    suspended.drain(1)
    suspended.channel.flow(False)
    assert sorted(states(suspended.channel)) == ["ready"] * 5 + ["unacked"]
    other = Inbox(connect().channel(), "q")
    other.drain(5)
    assert [message.payload for message in other.messages] == [1, 2, 3, 4, 5]
    suspended.messages[0].ack()


def test_other_channels_of_the_connection_go_on(connection):
    suspended, other = Inbox(connection.channel(), "q"), Inbox(connection.channel(), "q")
    suspended.channel.flow(False)
    publish(other.channel, "q", 1, 2)
    other.drain(2)
    assert suspended.messages == []


def test_broadcasts_wait(channel):
    news = kombu.Exchange("news", "fanout")
    inbox = Inbox(channel, kombu.Queue("mine", news, auto_delete=True))
    channel.flow(False)
    kombu.Producer(channel, news).publish("hello")
    quiet(inbox)
    channel.flow(True)
    inbox.drain(1)


def test_single_messages_can_be_got_meanwhile(channel):
    declare(channel, "q")
    publish(channel, "q", 1)
    channel.flow(False)
    message = channel.basic_get("q")
    assert message.payload == 1
    message.ack()
