"""Broadcasts that nobody would get."""

from __future__ import annotations

import kombu
import pytest
from kombu.exceptions import ChannelError

import celery_redis_plus
from celery_redis_plus import clock
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from tests.support.inbox import Inbox
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def undelivered(channel):
    return lambda: list(DeadLetters(channel.session.commands, channel.session.keys).all(UNDELIVERED))


def send(channel, body, exchange="news", **options):
    channel.exchange_declare(exchange, "fanout", durable=True)
    kombu.Producer(channel).publish(body, exchange=exchange, routing_key="k", **options)


def test_a_broadcast_without_subscribers_becomes_a_dead_letter(channel, undelivered, record, caplog):
    send(channel, "hello")
    (letter,) = undelivered()
    assert (letter.reason, letter.body, letter.exchange, letter.routing_key) == ("no_subscribers", b"hello", "news", "k")
    assert record(UNDELIVERED)["dead_lettered"] == "1"
    assert "exchange 'news' has no subscriber" in caplog.text


def test_of_many_the_first_is_logged_at_once_and_their_number_a_minute_later(channel, connect, undelivered, caplog, monkeypatch):
    lines = lambda: [record.getMessage() for record in caplog.records if "has no subscriber" in record.getMessage()]  # noqa: E731
    for number in range(50):
        send(channel, number)
    send(channel, 0, exchange="other")
    assert [line.partition(" has")[0] for line in lines()] == ["exchange 'news'", "exchange 'other'"]
    later = clock.now_s() + 61
    monkeypatch.setattr(clock, "now_s", lambda: later)
    # Another connection of the process shares the pace.
    send(connect().channel(), 50)
    assert lines()[-1].endswith("(so many since the last line: 50)")
    assert len(lines()) == 3
    assert len(undelivered()) == 52


def test_a_mandatory_one_is_an_error_and_is_not_kept(channel, undelivered, redis_client):
    with pytest.raises(ChannelError, match="exchange 'news' has no subscriber"):
        send(channel, "hello", mandatory=True)
    assert undelivered() == []
    assert redis_client.exists("/0.news") == 0


def test_one_with_a_subscriber_is_delivered(channel, connect, undelivered):
    inbox = Inbox(connect().channel(), kombu.Queue("s", kombu.Exchange("news", "fanout"), auto_delete=True))
    send(channel, "hello", mandatory=True)
    assert inbox.drain(1) == ["hello"]
    assert undelivered() == []


def test_when_the_last_subscriber_has_left_there_is_none(channel, connect, undelivered):
    connection = connect()
    Inbox(connection.channel(), kombu.Queue("s", kombu.Exchange("news", "fanout"), auto_delete=True))
    connection.release()
    wait_until(lambda: not channel.fanout_subscribers("news"))
    send(channel, "hello")
    assert [letter.reason for letter in undelivered()] == ["no_subscribers"]


@pytest.mark.parametrize("exchange", ["celeryev", "celery.pidbox", "worker1.celery.pidbox"])
def test_celerys_own_exchanges_may_be_unroutable_and_are_counted(channel, undelivered, redis_client, exchange):
    send(channel, {"type": "worker-heartbeat"}, exchange)
    assert undelivered() == []
    (counted,) = (redis_client.hget(key, "unroutable") for key in redis_client.keys("*") if redis_client.type(key) == b"hash"
                  and redis_client.hexists(key, "unroutable"))  # fmt: skip
    assert counted == b"1"


def test_other_exchanges_may_be_named(connect, undelivered):
    channel = connect(ignore_unroutable_exchanges="news, celeryev").channel()
    send(channel, "hello")
    assert undelivered() == []


def test_a_tracked_one_is_resolved_and_not_complete(connection, channel, undelivered):
    channel.exchange_declare("news", "fanout", durable=True)
    delivery = celery_redis_plus.broadcast("hello", "news", connection=connection)
    assert delivery.wait(PATIENCE_S)
    assert (delivery.complete, dict(delivery.outcomes())) == (False, {})
    assert [letter.reason for letter in undelivered()] == ["no_subscribers"]
