"""Closed means closed: publishing raises at once, and nothing is written."""

from __future__ import annotations

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import ServerUnreachable
from tests.support.inbox import declare


def message(channel):
    return channel.prepare_message(b"x", content_type="text/plain", content_encoding="utf-8")


@pytest.mark.parametrize("exchange", ["", "direct", "news"])
def test_a_closed_channel_publishes_nothing(channel, redis_client, exchange):
    declare(channel, "q")
    for kind in ("direct", "fanout"):
        channel.exchange_declare("news" if kind == "fanout" else "direct", kind)
    channel.queue_bind("q", "direct", "q")
    prepared = message(channel)
    channel.close()
    before = sorted(redis_client.keys("*"))
    with pytest.raises(ChannelError, match="closed"):
        channel.basic_publish(prepared, exchange, "q")
    assert sorted(redis_client.keys("*")) == before
    assert redis_client.zcard("queue:{q}") == 0


def test_a_closed_connection_publishes_nothing(connect, redis_client):
    connection = connect()
    channel = connection.channel()
    declare(channel, "q")
    producer = kombu.Producer(channel)
    prepared = message(channel)
    connection.release()
    # For a connection that is gone kombu's retry opens another; who does not ask for it hears of it at once.
    with pytest.raises(ServerUnreachable, match="closed"):
        channel.basic_publish(prepared, "", "q")
    with pytest.raises(ServerUnreachable, match="closed"):
        producer.publish("x", routing_key="q")
    assert redis_client.zcard("queue:{q}") == 0
