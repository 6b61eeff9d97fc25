"""A paused queue gives nothing to anybody, and takes everything."""

from __future__ import annotations

import logging

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidArgument, QueueNotFound
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


@pytest.fixture
def operator(broker_url):
    with BrokerAdmin(broker_url) as operator:
        yield operator


def test_a_paused_queue_delivers_nothing_and_goes_on_in_order_when_it_is_resumed(connect, operator):
    channel, publisher = connect().channel(), connect().channel()
    inbox = Inbox(channel, "q")
    publish(publisher, "q", 1)
    assert inbox.drain(1) == [1]
    operator.pause("q", "deploy")
    publish(publisher, "q", 2, 3)
    assert inbox.rest(0.3) == [1]
    assert channel.basic_get("q") is None
    assert operator.resume("q")
    assert inbox.drain(3, timeout_s=3) == [1, 2, 3]
    publish(publisher, "q", 4)
    assert inbox.drain(4, timeout_s=3) == [1, 2, 3, 4]


def test_what_was_delivered_before_can_be_settled_while_the_queue_is_paused(connect, operator):
    channel = connect().channel()
    inbox = Inbox(channel, "q", prefetch=2, ack=False)
    publish(channel, "q", 1, 2)
    inbox.drain(2)
    operator.pause("q", "deploy")
    inbox.messages[0].ack()
    inbox.messages[1].requeue()
    assert inbox.rest(0.2) == [1, 2]
    sizes = channel.queue_sizes("q")
    assert (sizes.ready, sizes.unacked) == (1, 0)
    operator.resume("q")
    assert inbox.drain(3) == [1, 2, 2]


def test_a_pause_with_a_time_limit_ends_by_itself(connect, operator):
    channel = connect().channel()
    inbox = Inbox(channel, "q")
    operator.pause("q", "night", for_s=1.0)
    publish(channel, "q", 1)
    assert inbox.rest(0.3) == []
    assert operator.paused("q").until > operator.paused("q").since
    assert inbox.drain(1) == [1]
    assert operator.paused("q") is None


def test_a_pause_survives_a_restart_of_server_and_consumers(own_server, connect):
    with BrokerAdmin(own_server.url()) as operator:
        first = connect(own_server.url())
        Inbox(first.channel(), "q")
        publish(first.default_channel, "q", "waits")
        operator.pause("q", "incident 42")
    first.release()
    with own_server.client() as client:
        client.config_set("appendonly", "yes")
        wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
        client.save()
    own_server.restart()
    with BrokerAdmin(own_server.url()) as operator:
        assert operator.paused("q").reason == "incident 42"
        publisher = connect(own_server.url()).channel()
        publish(publisher, "q", "also waits")
        inbox = Inbox(connect(own_server.url()).channel(), "q")
        assert inbox.rest(0.3) == []
        operator.resume("q")
        inbox.drain(1)


def test_consumers_log_a_pause_and_its_end(connect, operator, caplog):
    caplog.set_level(logging.INFO, logger="celery_redis_plus")
    inbox = Inbox(connect(consumer_heartbeat_timeout=1).channel(), "q")
    operator.pause("q", "the database moves")
    wait_until(lambda: "queue 'q' is paused until it is resumed: the database moves" in caplog.text)
    operator.resume("q")
    wait_until(lambda: "queue 'q' is resumed" in caplog.text)
    publish(inbox.channel, "q", 1)
    assert inbox.drain(1) == [1]


def test_the_end_of_a_pause_that_no_calendar_reaches_is_the_last_one(connect, operator, redis_client, caplog):
    declare(connect().channel(), "q")
    operator.pause("q", "for ever", for_s=60)
    redis_client.hset(Keys("").queue("q").meta, "paused_until", 10**18)
    # It consumes only now: it tells of a pause once.
    Inbox(connect(consumer_heartbeat_timeout=1).channel(), "q")
    assert operator.paused("q").until.year == 9999
    assert operator.overview_of("q").paused_until.year == 9999
    wait_until(lambda: "queue 'q' is paused until 9999-12-31" in caplog.text)
    assert "this is a defect" not in caplog.text


def test_publishing_to_a_paused_queue_wakes_nobody(connect, operator, redis_client):
    inbox, publisher = Inbox(connect().channel(), "q"), connect().channel()
    inbox.rest(0.1)
    operator.pause("q", "deploy")
    redis_client.config_resetstat()
    publish(publisher, "q", *range(100))
    inbox.rest(0.2)
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] <= 104


@pytest.mark.parametrize("arguments", [{}, {"x-max-unacked": 5}, {"x-single-active-consumer": True}])
def test_publishing_to_a_resumed_queue_that_was_empty_wakes_its_consumers(connect, operator, redis_client, arguments):
    """A sweep, within four seconds, would wake them as well."""
    publisher = connect().channel()
    declare(publisher, "q", arguments=arguments)
    operator.pause("q", "deploy")
    publish(publisher, "q", 1)
    assert not redis_client.exists("wakeup:{q}")
    publisher.queue_purge("q")
    operator.resume("q")
    publish(publisher, "q", 2)
    # Nobody consumes, so it is there still.
    assert redis_client.exists("wakeup:{q}")


def test_a_consumer_takes_from_its_other_queues_meanwhile(connect, operator):
    channel = connect().channel()
    inbox = Inbox(channel, "paused", "open", prefetch=4)
    operator.pause("paused", "deploy")
    publish(channel, "paused", *["no"] * 5)
    publish(channel, "open", *range(20))
    assert inbox.drain(20) == list(range(20))
    operator.resume("paused")
    inbox.drain(25)


def test_a_pause_wants_a_reason_a_queue_and_a_time(channel, operator):
    declare(channel, "q")
    with pytest.raises(InvalidArgument, match="no reason"):
        operator.pause("q", " ")
    with pytest.raises(InvalidArgument, match="more than 0"):
        operator.pause("q", "x", for_s=0)
    with pytest.raises(InvalidArgument, match=r"for 3155760001 s; allowed is .* up to 3155760000 \(a hundred years\)"):
        operator.pause("q", "x", for_s=3_155_760_001)
    assert operator.paused("q") is None
    operator.pause("q", "x", for_s=3_155_760_000)
    assert operator.paused("q").until.year < 2286
    operator.resume("q")
    with pytest.raises(QueueNotFound):
        operator.pause("nothing", "x")
    assert not operator.resume("q")
