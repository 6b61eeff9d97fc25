"""What subscribers and exchanges count, and where rejected broadcasts go."""

from __future__ import annotations

import dataclasses

import kombu
import pytest

from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCounts
from celery_redis_plus.errors import WrongKeyType
from tests.integration.fanout.conftest import NEWS, news, send
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until


def counts(channel, queue="q", state=None):
    found = [one for one in channel.fanout_subscribers("news") if one.queue == queue and state in {None, one.state, one.durable}]
    return dataclasses.asdict(found[0].counts) if found else {}


def test_a_subscriber_counts_what_became_of_its_broadcasts(connect, redis_client):
    publisher = connect(stream_maxlen=1_000_000).channel()
    inbox = Inbox(connect().channel(), news(), ack=False)
    send(publisher, *range(5))
    inbox.drain(5)
    ids = [entry for entry, _ in redis_client.xrange("/0.news")]
    inbox.messages[0].ack()
    inbox.messages[1].reject()
    inbox.messages[2].requeue()
    inbox.drain(6)[5:]
    inbox.messages[5].ack()
    size = sum(
        len(fields[b"head"]) + len(fields[b"payload"]) + len("headpayload") for _, fields in redis_client.xrange("/0.news")
    )
    assert len(ids) == 5
    expected = {"delivered": 5, "acked": 2, "rejected": 1, "dead_lettered": 0, "lost": 0, "bytes": size}
    wait_until(lambda: counts(publisher) == expected, message="the report of the last ack")
    assert publisher.fanout_counters("news")["count"] == 5


def test_a_durable_subscriber_counts_what_all_its_readers_have_done(connect):
    publisher = connect().channel()
    durable = news(**{"x-durable-subscriber": True})
    for expected in (3, 6):
        connection = connect()
        inbox = Inbox(connection.channel(), durable)
        [reader] = [one for one in publisher.fanout_subscribers("news") if not one.durable]
        assert reader.counts == SubscriberCounts()
        send(publisher, 1, 2, 3)
        inbox.drain(3)
        wait_until(
            lambda expected=expected: counts(publisher, state=True).get("acked") == expected,
            message=lambda: publisher.fanout_subscribers("news"),
        )
        connection.close()


def test_a_report_adds_to_a_durable_subscriber_what_has_grown_since_the_last_one(connect):
    publisher = connect().channel()
    inbox = Inbox(connect().channel(), news(**{"x-durable-subscriber": True}))
    for number in (1, 2, 3):
        send(publisher, number)
        inbox.drain(number)
        wait_until(
            lambda number=number: counts(publisher, state=False).get("acked") == number,
            message=lambda: publisher.fanout_subscribers("news"),
        )
    assert counts(publisher, state=True)["acked"] == 3


def test_a_broadcast_whose_number_cannot_be_remembered_counts_for_nothing(connect, redis_client):
    publisher = connect().channel()
    inbox = Inbox(connect().channel(), news())
    send(publisher, 1)
    inbox.drain(1)
    (remembered,) = redis_client.keys("producer:*news*")
    redis_client.delete(remembered)
    redis_client.rpush(remembered, "by somebody else")
    with pytest.raises(WrongKeyType):
        send(publisher, 2)
    redis_client.delete(remembered)
    send(publisher, 3)
    assert inbox.drain(2) == [1, 3]
    assert publisher.fanout_counters("news")["count"] == 2


def test_a_rejected_broadcast_goes_to_the_dead_letter_exchange_of_its_queue(connect, channel):
    graves = kombu.Queue("graves", durable=True)
    graves(channel).declare()
    to_graves = news(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"})
    inbox, other = Inbox(connect().channel(), to_graves, ack=False), Inbox(connect().channel(), news("other"), ack=False)
    send(channel, "bad", key="k")
    inbox.drain(1)
    inbox.messages[0].reject()
    other.drain(1)
    other.messages[0].reject()

    letters = Inbox(connect().channel(), graves)
    assert letters.drain(1) == ["bad"]
    [death] = letters.messages[0].headers["x-death"]
    assert (death["queue"], death["reason"], death["exchange"]) == ("q", "rejected", "news")
    letters.rest(quiet_s=0.2)
    assert len(letters.messages) == 1
    wait_until(lambda: counts(channel)["dead_lettered"] == 1)
    NEWS(channel).delete()
