"""Stored messages that nobody can read: damaged, or written by others. They end as dead letters, and are never deleted."""

from __future__ import annotations

import logging
from contextlib import suppress

import kombu
import pytest

from celery_redis_plus.errors import ConsumerCancelled, InvalidArgument
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import LARGE_BODY
from tests.support.waiting import wait_until

DAMAGED = [
    b"", b"\n", b"x", b"[]\n", b"{}\n", b"null\nx", b"5\nx", b"\xff\xfe\nx",
    b'{"headers":null,"properties":null}\nx',
    b'{"headers":[],"properties":[]}\nx',
    b'{"headers":{},"properties":{"delivery_info":5}}\nx',
    b'{"headers":{},"properties":{"delivery_info":null,"priority":"x"}}\nx',
    b'{"headers":5,"properties":{}}\nx',
    b'{"content-type":5,"headers":{},"properties":{}}\nx',
]  # fmt: skip
DLX = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}


def damage(client, payload):
    [tag] = client.zrange("queue:{q}", 0, -1)
    client.hset(b"message:{q}:" + tag, "payload", payload)


def end_of(channel, client):
    wait_until(lambda: client.zcard("messages_index:{q}") == 0)
    return channel.queue_sizes("q").ready, client.zcard("dead:{q}"), client.hget("meta:{q}", "vanished")


@pytest.mark.parametrize("payload", DAMAGED)
def test_a_damaged_message_becomes_a_dead_letter(connect, redis_client, caplog, payload):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", "good")
    damage(redis_client, payload)
    publish(publisher, "q", "next")
    inbox = Inbox(connect().channel(), "q")
    with caplog.at_level(logging.ERROR):
        assert inbox.drain(1) == ["next"]
    assert end_of(publisher, redis_client) == (0, 1, None)
    assert "cannot be read: to the dead letters" in caplog.text
    [tag] = redis_client.zrange("dead:{q}", 0, -1)
    assert redis_client.hmget(b"message:{q}:" + tag, "reason", "payload") == [b"rejected", payload]


@pytest.mark.parametrize("payload", [b"", b"x", b"{}\n"])
def test_so_does_one_that_is_got(connect, redis_client, payload):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "good")
    damage(redis_client, payload)
    assert channel.basic_get("q") is None
    assert end_of(channel, redis_client) == (0, 1, None)


@pytest.mark.parametrize("payload", [b"", b"x", b"{}\n", b"\xff\xfe\nx"])
def test_one_that_its_dead_letter_exchange_gets_is_kept_there(connect, redis_client, payload):
    publisher = connect().channel()
    declare(publisher, "graves")
    declare(publisher, "q", arguments=DLX)
    publish(publisher, "q", "good")
    damage(redis_client, payload)
    publish(publisher, "q", "next")
    inbox = Inbox(connect().channel(), kombu.Queue("q", durable=True, queue_arguments=DLX))
    assert inbox.drain(1) == ["next"]
    wait_until(lambda: publisher.queue_sizes("graves").ready + redis_client.zcard("dead:{q}") == 1)
    assert redis_client.zcard("dlx_outbox:{q}") == 0


def test_a_large_message_without_its_body_becomes_a_dead_letter(connect, redis_client):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", "x" * (LARGE_BODY + 1))
    [tag] = redis_client.zrange("queue:{q}", 0, -1)
    redis_client.hdel(b"message:{q}:" + tag, "body")
    assert Inbox(connect().channel(), "q").rest() == []
    assert end_of(publisher, redis_client) == (0, 1, None)


def test_a_large_message_that_is_gone_leaves_nothing(connect, redis_client):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", "small", "x" * (LARGE_BODY + 1))
    inbox = Inbox(connect().channel(), "q")
    inbox.drain(1)
    publisher.queue_delete("q")
    wait_until(lambda: not redis_client.keys("message:{q}:*"))
    # A sweep may tell the consumer first that its queue was deleted.
    with suppress(ConsumerCancelled):
        inbox.rest()
    assert inbox.bodies == ["small"]
    assert redis_client.zcard("dead:{q}") == 0


@pytest.mark.parametrize("body", [5, 0, ["a"], {}, 1.5], ids=repr)
def test_a_body_that_is_neither_bytes_nor_text_is_refused(channel, body):
    declare(channel, "q")
    with pytest.raises(InvalidArgument, match="argument 'body'"):
        channel.basic_publish(channel.prepare_message(body), exchange="", routing_key="q")
    assert channel.queue_sizes("q").ready == 0
