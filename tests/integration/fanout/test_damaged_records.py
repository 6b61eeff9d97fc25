"""The record of a subscriber that somebody else has written over: its exchange goes on, and its broadcasts come again."""

from __future__ import annotations

import pytest

from tests.integration.fanout.conftest import news, send
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

RECORDS, STREAM = "subscriber:{/0.news}", "/0.news"
DAMAGED = ["", "x 1 2 3 live me:1/x", "1-1 x 2 3 live me:1/x", b"\xff\x00"]


def durable():
    return news("q", **{"x-durable-subscriber": True})


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", DAMAGED)
def test_the_subscriber_is_heard_of_again_and_the_stream_is_trimmed(connect, redis_client, text):
    inbox = Inbox(connect(subscriber_timeout=3).channel(), durable())
    publisher = connect().channel()
    for name in redis_client.hkeys(RECORDS):
        redis_client.hset(RECORDS, name, text)
    send(publisher, *range(300))
    assert inbox.drain(300) == list(range(300))

    def repaired():
        inbox.pump(0.02)
        return all(b" live " in record for record in redis_client.hvals(RECORDS)) and redis_client.xlen(STREAM) < 200

    wait_until(repaired, 10)
    assert [one.queue for one in publisher.fanout_subscribers("news")].count("q") == 2


@pytest.mark.parametrize("text", DAMAGED)
def test_the_next_reader_of_a_damaged_durable_subscriber_misses_nothing(connect, redis_client, text):
    connection = connect()
    inbox = Inbox(connection.channel(), durable())
    publisher = connect().channel()
    send(publisher, 1)
    inbox.drain(1)
    connection.close()
    send(publisher, 2)
    wait_until(lambda: [one.state for one in publisher.fanout_subscribers("news")] == ["left"])
    for name in redis_client.hkeys(RECORDS):
        redis_client.hset(RECORDS, name, text)
    assert publisher.fanout_subscribers("news") == []
    after = Inbox(connect().channel(), durable())
    wait_until(lambda: after.pump(0.1) and 2 in after.bodies)


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_of_a_dead_subscriber_is_removed(connect, redis_client, hasty, text):
    inbox = Inbox(connect().channel(), news())
    redis_client.hset(RECORDS, "gone.other", text)
    redis_client.zadd("subscribers:{/0.news}", {"gone.other": 1})
    redis_client.zadd("cursors:{/0.news}", {"gone.other": 0})
    wait_until(lambda: (inbox.pump(0.02), not redis_client.hexists(RECORDS, "gone.other"))[1], 15)
