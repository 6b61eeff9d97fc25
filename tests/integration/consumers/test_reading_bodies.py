"""A body can kill the process that fetches or decodes it (memory): the server hears before that that the work on it begins."""

from __future__ import annotations

import pytest

from celery_redis_plus.stored_message import LARGE_BODY
from celery_redis_plus.transport import kombu_message
from tests.support.inbox import Inbox, declare, publish

LARGE = "x" * (LARGE_BODY + 1)


@pytest.fixture
def begun_when_read(channel, redis_client, monkeypatch):
    """Publish a message that failed once; return what tells whether the server knew of its beginning when its body was read."""
    known = []

    def note(*_):
        # What was posted before has arrived.
        channel.session.commands.command("PING")
        (key,) = redis_client.keys("message:{q}:*")
        begun, claim = redis_client.hmget(key, "begun", "claim")
        known.append(begun == claim)

    def noting(read):
        return lambda *arguments: note() or read(*arguments)

    def publish_failed(body):
        declare(channel, "q")
        publish(channel, "q", body)
        (key,) = redis_client.keys("message:{q}:*")
        redis_client.hset(key, mapping={"failed": 1, "claim": 1})
        monkeypatch.setattr(
            channel.consumer_session.claim_commands, "fetch_body", noting(channel.consumer_session.claim_commands.fetch_body)
        )
        monkeypatch.setattr(kombu_message, "load", noting(kombu_message.load))
        return known

    return publish_failed


@pytest.mark.parametrize("body", ["small", LARGE], ids=["small", "large"])
def test_a_consumer_begins_a_message_before_it_reads_the_body(channel, begun_when_read, body):
    known = begun_when_read(body)
    assert Inbox(channel, "q").drain(1) == [body]
    assert known
    assert all(known)


@pytest.mark.parametrize("body", ["small", LARGE], ids=["small", "large"])
def test_basic_get_begins_a_message_before_it_reads_the_body(channel, begun_when_read, body):
    known = begun_when_read(body)
    channel.basic_get("q").ack()
    assert known
    assert all(known)


def test_a_large_body_is_begun_before_it_is_fetched_where_the_work_begins_later(channel, begun_when_read):
    known = begun_when_read(LARGE)
    # As a Celery worker has it.
    channel.queue_consumers.begins_at_delivery = False
    Inbox(channel, "q").drain(1)
    assert known
    assert all(known)


def test_a_small_body_is_not_begun_by_reading_it_where_the_work_begins_later(channel, begun_when_read):
    known = begun_when_read("small")
    channel.queue_consumers.begins_at_delivery = False
    Inbox(channel, "q").drain(1)
    assert known == [False]
