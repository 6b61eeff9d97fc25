"""Consumers that have a queue alone."""

from __future__ import annotations

import pytest
from kombu.exceptions import ChannelError

from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def test_nobody_else_can_consume_a_queue_that_one_consumes_exclusively(connect):
    connection, other = connect(), connect().channel()
    channel = connection.channel()
    declare(channel, "q")
    got = []
    tag = channel.basic_consume("q", callback=got.append, no_ack=True, exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(ChannelError, match="exclusive") as caught:
            other.basic_consume("q", exclusive=exclusive)
        assert caught.value.code == 403
    with pytest.raises(ChannelError, match="exclusive"):
        other.basic_get("q")
    publish(other, "q", "for me alone")
    connection.drain_events(timeout=5)
    assert [message.payload for message in got] == ["for me alone"]
    channel.basic_cancel(tag)
    assert Inbox(other, "q").rest(0.05) == []


def test_a_queue_that_others_consume_cannot_be_had_alone(connect, redis_client):
    inbox, channel = Inbox(connect().channel(), "q"), connect().channel()
    with pytest.raises(ChannelError, match="consumers") as caught:
        channel.basic_consume("q", exclusive=True)
    assert caught.value.code == 403
    publish(channel, "q", 1)
    assert inbox.drain(1) == [1]
    assert redis_client.hget("meta:{q}", "restricted") is None


def test_the_queue_is_free_again_when_the_exclusive_consumer_s_connection_is_lost(connect):
    lost, channel = connect(), connect().channel()
    declare(channel, "q")
    lost.channel().basic_consume("q", exclusive=True)
    lost.transport.delivery_loop.server.session.wakeup_connection.abort()
    lost.transport.session.broken = True
    lost.collect()

    def consumes():
        try:
            return channel.basic_consume("q")
        except ChannelError:
            return None

    wait_until(consumes)
