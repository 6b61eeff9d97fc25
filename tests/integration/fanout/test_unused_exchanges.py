"""The stream of a fanout exchange without a subscriber has an end, and so have the counters of an auto-delete exchange."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until

META, STREAM = "fanout:{/0.room}", "/0.room"


@pytest.fixture
def registry(channel):
    return SubscriberRegistry(channel.session.commands, timeout_s=300, max_age_s=3600)


def room(**options):
    return kombu.Exchange("room", "fanout", **options)


def leave_it_unused(connect, exchange):
    """Have a subscriber read a broadcast and leave; then somebody sends once more, to nobody."""
    connection = connect(ignore_unroutable_exchanges="room")
    inbox = Inbox(connection.channel(), kombu.Queue("q", exchange, auto_delete=True, durable=False))
    publish = kombu.Producer(connection.default_channel, exchange).publish
    publish(1)
    inbox.drain(1)
    inbox.cancel()
    publish(2)


@pytest.mark.parametrize("auto_delete", [True, False])
def test_they_have_an_end_without_a_subscriber_and_none_with_one(connect, redis_client, registry, channel, auto_delete):
    stream_s, meta_s = (300, 300) if auto_delete else (3600, -1)
    exchange = room(auto_delete=auto_delete, durable=not auto_delete)
    leave_it_unused(connect, exchange)
    keys = channel.session.fanout_keys("room")
    wait_until(lambda: redis_client.exists("cursors:{/0.room}") == 0)
    registry.reap(keys, auto_delete=auto_delete)
    assert stream_s - 60 <= redis_client.ttl(STREAM) <= stream_s
    assert redis_client.ttl(META) == -1 if meta_s == -1 else meta_s - 60 <= redis_client.ttl(META) <= meta_s
    inbox = Inbox(connect().channel(), kombu.Queue("q2", exchange, auto_delete=True, durable=False))
    assert (redis_client.ttl(STREAM), redis_client.ttl(META)) == (-1, -1)
    registry.reap(keys, auto_delete=auto_delete)
    assert (redis_client.ttl(STREAM), redis_client.ttl(META)) == (-1, -1)
    kombu.Producer(channel, exchange).publish(3)
    assert inbox.drain(1) == [3]


def test_a_subscriber_whose_record_was_lost_takes_the_end_away(connect, redis_client, registry, channel):
    exchange = room(auto_delete=True, durable=False)
    inbox = Inbox(connect(subscriber_timeout=1).channel(), kombu.Queue("q", exchange, auto_delete=True, durable=False))
    kombu.Producer(channel, exchange).publish(1)
    inbox.drain(1)
    redis_client.delete("cursors:{/0.room}", "subscribers:{/0.room}", "subscriber:{/0.room}")
    registry.reap(channel.session.fanout_keys("room"), auto_delete=True)
    wait_until(lambda: redis_client.ttl(STREAM) == -1 and redis_client.ttl(META) == -1)
    kombu.Producer(channel, exchange).publish(2)
    assert inbox.drain(2) == [1, 2]
