"""What the stream no longer holds is told: how many, between which entries, in the log and by a callback (issue E, Shows 2)."""

from __future__ import annotations

import logging
import threading

import pytest

from celery_redis_plus.signals import Missed
from tests.integration.fanout.conftest import NEWS, news, reconnect, send
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until

STREAM = "/0.news"
RECORDS = "subscriber:{/0.news}"
ENVELOPE = b'{"content-type":"application/json","content-encoding":"utf-8","headers":{},"properties":{"delivery_info":{}}}'


def cut(redis_client):
    redis_client.client_kill_filter(_type="normal", skipme=True)


def test_a_subscriber_that_was_away_for_too_long_learns_exactly_how_many_it_missed(connect, redis_client, noticed, caplog):
    publisher, connection = connect(stream_maxlen=100), connect()
    inbox = Inbox(connection.channel(), news())
    send(publisher.default_channel, *range(10))
    assert inbox.drain(10) == list(range(10))
    last = redis_client.xrevrange(STREAM, count=1)[0][0].decode()
    cut(redis_client)
    with pytest.raises(connection.connection_errors):
        inbox.rest(quiet_s=5)
    send(connect(stream_maxlen=100).default_channel, *range(10, 1000))
    kept = redis_client.xlen(STREAM)
    first = redis_client.xrange(STREAM, count=1)[0][0].decode()
    reconnect(connection)
    again = Inbox(connection.channel(), news())
    with caplog.at_level(logging.WARNING):
        assert again.drain(kept) == list(range(1000 - kept, 1000))
    missed = 1000 - kept - 10
    assert missed > 0
    assert [one for one in noticed if isinstance(one, Missed)] == [Missed("q", "news", missed, last, first)]
    [line] = [record.getMessage() for record in caplog.records if "missed" in record.getMessage()]
    assert f"missed {missed} broadcast(s) of exchange 'news', numbers 11 to {10 + missed}" in line


def test_entries_that_somebody_deleted_are_missed_too(connect, redis_client, noticed):
    inbox = Inbox(connect().channel(), news())
    publisher = connect().default_channel
    NEWS(publisher).declare()
    send(publisher, 0)
    inbox.drain(1)
    send(publisher, *range(1, 6))
    ids = [entry for entry, _ in redis_client.xrange(STREAM)]
    redis_client.xdel(STREAM, ids[2], ids[3])
    assert inbox.drain(4) == [0, 1, 4, 5]
    assert [(one.count, one.after, one.until) for one in noticed] == [(2, ids[1].decode(), ids[4].decode())]


def test_a_stream_that_began_anew_is_read_from_its_beginning_and_reported(connect, redis_client, noticed):
    inbox = Inbox(connect().channel(), news())
    publisher = connect().default_channel
    send(publisher, *range(5))
    inbox.drain(5)
    redis_client.delete(STREAM, "fanout:{/0.news}")
    send(publisher, "new", "newer")
    assert inbox.drain(7)[5:] == ["new", "newer"]
    assert [one.count for one in noticed] == [None]


def test_a_stream_that_went_back_behind_the_cursor_is_read_on_from_its_end(connect, redis_client, noticed):
    """A replica that had not everything became the primary, or an older snapshot was loaded: ids come again from before."""
    inbox = Inbox(connect().channel(), news())
    publisher = connect().default_channel
    send(publisher, 1, 2)
    inbox.drain(2)
    [last] = redis_client.xrevrange(STREAM, count=1)
    # The next heartbeat of a cursor that is known and does not move is 30 s away.
    wait_until(lambda: any(record.startswith(last[0]) for record in redis_client.hvals(RECORDS)))
    with redis_client.pipeline(transaction=True) as older:
        older.delete(STREAM)
        older.xadd(STREAM, {"head": "1 a.1 ", "payload": "{}"}, id="5-0")
        older.hset("fanout:{/0.news}", "count", 1)
        older.execute()

    # As with a failover.
    for client in redis_client.client_list():
        if client["name"].endswith(("maintenance", "timers")):
            redis_client.client_kill_filter(_id=client["id"])

    def told():
        inbox.pump(0.2)
        return noticed

    wait_until(told, 10)
    assert [one.count for one in noticed] == [None]
    redis_client.hset("fanout:{/0.news}", "count", 2)
    redis_client.xadd(STREAM, {"head": "2 a.2 ", "payload": ENVELOPE + b"\n3"}, id="6-0")
    assert inbox.drain(3)[2:] == [3]


def test_a_sleeping_subscriber_is_woken_when_its_stream_went_back(connect, redis_client, noticed, sleeps):
    # Its cursor is compared each second.
    inbox = Inbox(connect(subscriber_timeout=3, polling_interval=600).channel(), news())
    publisher = connect().default_channel
    send(publisher, 1, 2)
    inbox.drain(2)
    sleeps.clear()
    reader = threading.Thread(target=inbox.drain, args=(3, 20))
    reader.start()
    assert sleeps.wait(10)
    with redis_client.pipeline(transaction=True) as older:
        older.delete(STREAM)
        older.xadd(STREAM, {"head": "1 a.1 ", "payload": "{}"}, id="5-0")
        older.hset("fanout:{/0.news}", "count", 1)
        older.execute()
    try:
        wait_until(lambda: noticed, 10)
        send(publisher, 3)
    finally:
        reader.join()
    assert inbox.bodies == [1, 2, 3]


def test_what_a_pattern_passes_over_is_not_missed(connect, noticed):
    channel = connect().channel()
    inbox = Inbox(channel, news())
    filtered = Inbox(connect().channel(), news("filtered"))
    filtered.channel.queue_unbind("filtered", "news", "")
    filtered.channel.queue_bind("filtered", "news", "wanted.*")
    send(channel, *range(20), key="other")
    send(channel, "yes", key="wanted.x")
    assert filtered.drain(1) == ["yes"]
    assert len(inbox.drain(21)) == 21
    assert noticed == []
