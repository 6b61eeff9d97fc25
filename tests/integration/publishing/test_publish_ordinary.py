"""The script for ordinary messages: which take it, and what an old reading of the queue's record must not do."""

from __future__ import annotations

import time

import kombu
import pytest

from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.errors import QueueFull
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

OF_CONSUMERS = [{}, {"x-max-priority": 5}, {"x-single-active-consumer": True}, {"x-dead-letter-exchange": "d"}]
OTHERS = {
    "x-message-ttl": {"x-message-ttl": 60_000},
    "x-priority-ageing": {"x-priority-ageing": 60_000},
    "x-max-length": {"x-max-length": 10},
    "x-expires": {"x-expires": 60_000},
}


@pytest.fixture
def scripts(monkeypatch):
    """The names of the publishing scripts that are called."""
    called = []
    call = CommandConnection.call_packed

    def note(self, script, packed):
        if script.name.startswith("publish"):
            called.append(script.name)
        return call(self, script, packed)

    monkeypatch.setattr(CommandConnection, "call_packed", note)
    return called


@pytest.mark.parametrize("arguments", OF_CONSUMERS)
def test_an_ordinary_message_takes_it(channel, scripts, arguments):
    declare(channel, "q", arguments=arguments)
    publish(channel, "q", "x", priority=3)
    assert scripts == ["publish_ordinary"]
    assert channel.queue_sizes("q").ready == 1


@pytest.mark.parametrize("arguments", OTHERS.values(), ids=OTHERS)
def test_a_queue_that_publishing_has_to_heed_does_not(channel, scripts, arguments):
    declare(channel, "q", arguments=arguments)
    publish(channel, "q", "x")
    assert "publish_ordinary" not in scripts
    assert channel.queue_sizes("q").ready == 1


@pytest.mark.parametrize(
    "properties",
    [{"headers": {"x-delay": 1}}, {"expiration": 60}, {"headers": {"x-deduplication-id": "d"}}],
    ids=["delayed", "expires", "deduplicated"],
)
def test_a_message_that_is_delayed_or_expires_does_not(channel, scripts, properties):
    declare(channel, "q")
    publish(channel, "q", "x", **properties)
    assert scripts == ["publish"]


def test_a_large_message_does_not(channel, scripts):
    declare(channel, "q")
    publish(channel, "q", "x" * 1_100_000)
    assert scripts == ["publish"]


@pytest.mark.parametrize("arguments", OTHERS.values(), ids=OTHERS)
def test_a_queue_that_another_connection_declared_anew_is_heeded(connect, redis_client, scripts, arguments):
    old, new = connect(), connect(visibility_timeout=7)
    channel, other = old.channel(), new.channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    other.queue_delete("q")
    declare(other, "q", arguments=arguments)
    del scripts[:]
    publish(channel, "q", "y")
    publish(channel, "q", "z")
    assert (scripts[0], scripts.count("publish_ordinary")) == ("publish_ordinary", 1)
    assert other.basic_get("q").payload == "y"
    if "x-message-ttl" in arguments:
        assert redis_client.zcard("expiry:{q}") == 1


@pytest.mark.parametrize("arguments", OTHERS.values(), ids=OTHERS)
def test_an_old_reading_of_a_queue_that_the_server_lost_is_noticed(connect, redis_client, scripts, arguments):
    """A server without its data counts the ids of queues from 1 again."""
    channel, other = connect().channel(), connect(visibility_timeout=7).channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    redis_client.flushdb()
    declare(other, "q", arguments=arguments)
    del scripts[:]
    publish(channel, "q", "y", "z")
    assert (scripts[0], scripts.count("publish_ordinary")) == ("publish_ordinary", 1)


def test_a_record_without_arguments_ends_no_publisher(channel, redis_client):
    declare(channel, "q")
    publish(channel, "q", "x")
    redis_client.delete("meta:{q}")
    redis_client.hset("meta:{q}", "id", "other")
    publish(channel, "q", "y")
    assert channel.queue_sizes("q").ready == 2


def test_a_lasting_queue_keeps_its_messages_where_a_transient_one_of_its_name_ended(connect, redis_client):
    """The record of an unused queue goes first: its sets live on, and its messages must not come into the new queue."""
    first = connect().channel()
    declare(first, "q", arguments={"x-expires": 1_000})
    publish(first, "q", "old")
    publish(first, "q", "old", headers={"x-delay": 60_000})
    redis_client.delete("meta:{q}")
    channel = connect(visibility_timeout=7).channel()
    declare(channel, "q")
    publish(channel, "q", "new")
    publish(channel, "q", "new", headers={"x-delay": 60_000})
    ends_at = time.monotonic() + 1.2
    wait_until(lambda: time.monotonic() > ends_at)
    assert (redis_client.ttl("queue:{q}"), redis_client.ttl("delayed:{q}")) == (-1, -1)
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True))
    assert inbox.drain(1) == ["new"]
    assert channel.queue_sizes("q").delayed == 1


def test_a_setting_that_a_later_release_has_stops_no_publisher(channel, connect, redis_client):
    declare(connect(visibility_timeout=7).channel(), "q", arguments={"x-retry-policy": "exponential first=1000"})
    stands = redis_client.hget("meta:{q}", "arguments")
    redis_client.hset("meta:{q}", "arguments", stands.replace(b"first=1000", b"first=1000 spread=2"))
    publish(channel, "q", "x")
    assert redis_client.zcard("queue:{q}") == 1


def test_a_queue_that_refuses_from_now_on_refuses(connect, scripts):
    channel, other = connect().channel(), connect(visibility_timeout=7).channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    other.queue_delete("q")
    declare(other, "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(channel, "q", "x")
    with pytest.raises(QueueFull, match="x-max-length"):
        publish(channel, "q", "y")


def test_a_paused_queue_wakes_no_consumer(channel, redis_client, scripts):
    declare(channel, "q")
    Pausing(channel.session.commands, channel.session.keys).pause("q", "a test")
    publish(channel, "q", "x")
    assert scripts == ["publish_ordinary"]
    assert not redis_client.exists("wakeup:{q}")
