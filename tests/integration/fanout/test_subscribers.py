"""Who subscribes is known on the server: cursor, lag, sign of life, death; and the stream is trimmed by it."""

from __future__ import annotations

import logging
import os

import kombu
import pytest

from celery_redis_plus.signals import SubscriberDied
from tests.integration.fanout.conftest import NEWS, news, send
from tests.support.inbox import Inbox
from tests.support.services import end_services
from tests.support.waiting import wait_until

STREAM = "/0.news"


def subscribers(channel):
    return {one.queue: one for one in channel.fanout_subscribers("news")}


def test_a_subscriber_is_registered_with_cursor_lag_and_host(connect, redis_client):
    channel = connect().channel()
    inbox = Inbox(channel, news())
    send(channel, *range(5))
    inbox.drain(5)
    wait_until(lambda: subscribers(channel)["q"].lag == 0)
    one = subscribers(channel)["q"]
    assert one.state == "live"
    assert one.cursor == redis_client.xrevrange(STREAM, count=1)[0][0].decode()
    assert one.host.endswith(f":{os.getpid()}")
    assert one.since_ms <= one.now_ms < one.deadline_ms <= one.now_ms + 300_000
    send(channel, *range(3))
    assert subscribers(channel)["q"].lag == 3


def test_a_queue_that_is_bound_and_not_consumed_is_registered_for_a_while_only(connect, redis_client, hasty):
    channel = connect(subscriber_timeout=1).channel()
    news()(channel).declare()
    assert subscribers(channel)["q"].state == "bound"
    wait_until(lambda: channel.fanout_deaths("news") == [] and not subscribers(channel), 5)


def test_a_queue_that_is_bound_has_a_minute_until_it_is_consumed(channel):
    news()(channel).declare()
    one = subscribers(channel)["q"]
    assert 50_000 < one.deadline_ms - one.now_ms <= 60_000


def test_consumers_that_leave_in_order_leave_no_key(connect, redis_client):
    before = set(redis_client.keys())
    connection = connect()
    inbox = Inbox(connection.channel(), news())
    news("bound only")(connection.default_channel).declare()
    send(connection.default_channel, 1)
    inbox.drain(1)
    wait_until(lambda: subscribers(connection.default_channel)["q"].state == "live")
    inbox.cancel()
    # A goodbye is sent, not waited for, and a sign of life may have been on its way beside it.
    wait_until(lambda: set(subscribers(connection.default_channel)) == {"bound only"})
    connection.release()

    def registered():
        left = {key.decode() for key in set(redis_client.keys()) - before}
        return [key for key in left if "subscriber" in key or "cursors" in key]

    wait_until(lambda: not registered(), message=registered)
    channel = connect().default_channel
    channel.exchange_delete("news")
    # What is remembered of a producer expires with `publish_dedup_window`, that bindings were removed after an hour.
    assert [key for key in redis_client.keys("*news*") if redis_client.pttl(key) == -1] == []


def test_a_subscriber_without_a_sign_of_life_dies_after_its_second_chance(connect, redis_client, hasty, noticed, caplog):
    """Its process is simulated by one whose maintenance tasks have ended: no report, no goodbye."""
    inbox = Inbox(connect(subscriber_timeout=1).channel(), news())
    publisher = connect().channel()
    wait_until(lambda: subscribers(publisher)["q"].state == "live")
    end_services()
    send(publisher, *range(7))
    wait_until(lambda: publisher.fanout_deaths("news") == [] and subscribers(publisher)["q"].state == "suspect", 5)
    with caplog.at_level(logging.WARNING):
        other = Inbox(connect(subscriber_timeout=2).channel(), news("other"))
        wait_until(lambda: [one for one in noticed if isinstance(one, SubscriberDied)], 10)
    [died] = [one for one in noticed if isinstance(one, SubscriberDied)]
    assert (died.queue, died.exchange, died.unread) == ("q", "news", 7)
    assert set(subscribers(publisher)) == {"other"}
    assert "is dead" in caplog.text
    [death] = publisher.fanout_deaths("news")
    assert (death.queue, death.unread, death.at_ms) == ("q", 7, died.at_ms)
    # Other processes look every half a minute.
    assert redis_client.pttl("dead_subscribers:{/0.news}") > 300_000
    assert inbox.messages == other.messages == []


def test_a_suspect_that_reports_in_time_lives_on(connect, hasty, noticed):
    channel = connect(subscriber_timeout=1).channel()
    Inbox(channel, news())
    wait_until(lambda: subscribers(channel)["q"].state == "live")
    service = channel.session.service
    service.stop()
    publisher = connect().channel()
    wait_until(lambda: publisher.fanout_deaths("news") == [] and subscribers(publisher)["q"].state == "suspect", 5)
    service.start()
    wait_until(lambda: subscribers(publisher)["q"].state == "live")
    assert noticed == []


def test_what_all_have_processed_is_dropped_and_what_one_has_not_is_kept(connect, redis_client):
    fast, slow = Inbox(connect().channel(), news("fast")), Inbox(connect().channel(), news("slow"))
    publisher = connect().channel()
    send(publisher, *range(1000))
    fast.drain(1000)
    wait_until(lambda: subscribers(publisher)["fast"].lag == 0)
    assert subscribers(publisher)["slow"].lag == redis_client.xlen(STREAM) == 1000
    slow.drain(1000)
    # Whole nodes of 100 entries at most go.
    wait_until(lambda: redis_client.xlen(STREAM) <= 100)


def test_without_subscribers_the_stream_keeps_what_the_bounds_allow(channel, redis_client):
    NEWS(channel).declare()
    send(channel, *range(300))
    assert channel.fanout_deaths("news") == []
    assert redis_client.xlen(STREAM) == 300


def test_entries_that_are_too_old_go_whoever_wants_them(connect, redis_client):
    channel = connect(stream_max_age=1).channel()
    Inbox(channel, news())
    send(channel, *range(300))
    # Looking for the dead trims, too.
    wait_until(lambda: channel.fanout_deaths("news") == [] and redis_client.xlen(STREAM) <= 100, interval_s=0.2)


def test_entries_that_are_not_too_old_stay_for_who_wants_them(connect, redis_client):
    channel = connect(stream_max_age=600).channel()
    Inbox(channel, news())
    send(channel, *range(300))
    [(last, _)] = redis_client.xrevrange(STREAM, count=1)
    wait_until(lambda: redis_client.time()[0] > int(last.partition(b"-")[0]) / 1000 + 1)
    # Every hundredth publish trims, and so does the look for the dead.
    send(channel, *range(100))
    assert channel.fanout_deaths("news") == []
    assert redis_client.xlen(STREAM) == 400


def test_the_registry_heals_after_a_flush(connect, redis_client):
    channel = connect().channel()
    inbox = Inbox(channel, news())
    send(channel, 1)
    inbox.drain(1)
    redis_client.delete(*redis_client.keys("*subscriber*"), *redis_client.keys("cursors*"))
    send(channel, 2)
    assert inbox.drain(2) == [1, 2]
    wait_until(lambda: "q" in subscribers(channel) and subscribers(channel)["q"].lag == 0)


@pytest.mark.parametrize(("exchange", "code"), [("nowhere", 404), ("direct", 406)])
def test_only_fanout_exchanges_have_subscribers(channel, exchange, code):
    channel.exchange_declare("direct", "direct")
    with pytest.raises(channel.connection.client.channel_errors) as caught:
        channel.fanout_subscribers(exchange)
    assert caught.value.code == code


def test_subscribing_twice_is_one_subscription_and_the_last_of_bind_and_unbind_wins(connect):
    channel = connect().channel()
    inbox = Inbox(channel, news())
    channel.queue_bind("q", "news", "")
    inbox.consumer.consume()
    assert len(channel.fanout_subscribers("news")) == 1
    send(channel, 1)
    assert inbox.exactly(1) == [1]
    for _ in range(3):
        channel.queue_unbind("q", "news", "")
        channel.queue_bind("q", "news", "")
    send(channel, 2)
    assert inbox.exactly(2) == [1, 2]
    channel.queue_bind("q", "news", "")
    channel.queue_unbind("q", "news", "")
    send(channel, 3)
    assert inbox.exactly(2) == [1, 2]
    assert channel.fanout_subscribers("news") == []


def test_an_idle_subscriber_costs_one_blocked_call_for_all_its_streams(connect, redis_client):
    channel = connect().channel()
    other = kombu.Exchange("weather", "fanout", durable=True)
    inbox = Inbox(channel, news(), kombu.Queue("w", other, durable=True))
    send(channel, 1)
    kombu.Producer(channel, other).publish(2)
    inbox.drain(2)
    inbox.rest(0.1)

    def reads():
        return redis_client.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"]

    before = reads()
    inbox.rest(1.0)
    assert reads() - before <= 1

    def blocked():
        return [row for row in redis_client.client_list() if row["cmd"] == "xread" and "b" in row["flags"]]

    # On a busy machine the server notices late that the connections of the test before are gone.
    wait_until(lambda: len(blocked()) == 1)


def test_a_process_knows_how_far_its_slowest_subscriber_is_behind(connect):
    connection = connect(subscriber_timeout=3)
    channel = connection.default_channel
    inbox = Inbox(channel, news(), ack=False)
    figures = channel.session.service.figures
    send(channel, 1, 2, 3)
    inbox.drain(3)
    wait_until(lambda: figures()["fanout_lag_messages"] == 3)
    for message in inbox.messages:
        message.ack()
    wait_until(lambda: figures()["fanout_lag_messages"] == 0)
