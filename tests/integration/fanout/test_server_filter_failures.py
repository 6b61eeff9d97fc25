"""A subscriber with `x-server-filter` that dies, is cut off or taken for dead; and an exchange that is deleted (issue 19)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from urllib.parse import urlsplit

import kombu
import pytest
from redis.exceptions import ResponseError

from celery_redis_plus.signals import Missed
from tests.integration.fanout.conftest import NEWS, flags, reconnect, send
from tests.integration.fanout.filtering import CURSORS, DURABLE, FILTERS, META, STREAM, fields_left, keyed
from tests.support.inbox import Inbox
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


def test_a_dead_one_leaves_nothing(connect, redis_client, hasty, noticed):
    inbox = Inbox(connect().channel(), keyed("a"), ack=False)
    publisher = connect().channel()
    send(publisher, 1, 2, key="a")
    inbox.drain(2)
    [name] = redis_client.zrange("subscribers:{/0.news}", 0, 0)
    wait_until(lambda: redis_client.hget("subscriber:{/0.news}", name).split(b" ")[4] == b"live")
    for _ in range(2):
        redis_client.zadd("subscribers:{/0.news}", {name: 1})
        deaths = publisher.fanout_deaths("news")
    assert [(death.queue, death.unread) for death in deaths] == [("q", 2)]
    assert fields_left(redis_client) == ({}, [], None)


def test_one_that_was_taken_for_dead_is_told_and_gets_what_comes_after(connect, redis_client, noticed):
    inbox = Inbox(connect(subscriber_timeout=3).channel(), keyed("a"))
    publisher = connect().channel()
    inbox.rest()
    [name] = redis_client.zrange("subscribers:{/0.news}", 0, 0)
    for _ in range(2):
        redis_client.zadd("subscribers:{/0.news}", {name: 1})
        publisher.fanout_deaths("news")
    send(publisher, "missed", key="a")
    wait_until(lambda: redis_client.hget(META, "filtered") == b"1")
    send(publisher, "after", key="a")
    assert inbox.drain(1) == ["after"]
    assert [one.count for one in noticed if isinstance(one, Missed)] == [None]


def test_a_deleted_exchange_leaves_nothing(connect, redis_client):
    connection = connect()
    keyed("a", **{"x-durable-subscriber": True})(connection.channel()).declare()
    connection.release()
    channel = connect().channel()
    send(channel, 1, key="a")
    channel.exchange_delete("news")
    assert fields_left(redis_client) == ({}, [], None)


# -- durable subscribers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True], ids=["ordinary", "durable"])
def test_an_exchange_that_is_deleted_and_bound_again_is_read_at_once(connect, durable):
    channel, queue = connect().channel(), keyed("a", **(DURABLE if durable else {}))
    inbox = Inbox(channel, queue)
    send(connect().channel(), "one", key="a")
    inbox.drain(1)
    NEWS(channel).delete()
    queue(channel).declare()
    for number in range(5):
        send(connect().channel(), number, key="a")
    assert inbox.drain(6, timeout_s=5) == ["one", *range(5)]


def test_a_durable_one_finds_what_matched_while_it_was_away(connect, redis_client):
    queue = keyed("a", "b.#", **{"x-durable-subscriber": True})
    with connect() as connection:
        inbox = Inbox(connection.channel(), queue)
        send(connect().channel(), 1, key="a")
        inbox.drain(1)
    publisher = connect().channel()
    for number, key in enumerate(("b", "x", "b.c", "a"), 2):
        send(publisher, number, key=key)
    again = Inbox(connect().channel(), queue)
    again.exactly(3)
    assert flags(again) == [(2, False), (4, False), (5, False)]
    again.cancel()
    publisher.queue_delete("q")
    wait_until(lambda: fields_left(redis_client) == ({}, [], None))


def test_two_processes_that_read_for_one_get_everything_each(connect, redis_client):
    queue = keyed("a", **{"x-durable-subscriber": True})
    first, second = Inbox(connect().channel(), queue), Inbox(connect().channel(), queue, ack=False)
    publisher = connect().channel()
    send(publisher, *range(10), key="a")
    assert first.drain(10) == list(range(10))
    # The slower one holds the stream.
    wait_until(lambda: redis_client.zscore(CURSORS, "durable.q") == float("inf"))
    for _ in range(300):
        send(publisher, "other", key="b")
    time.sleep(1.5)  # two reports of the faster one
    assert second.drain(10) == list(range(10))


def _read_two_and_hang(url, told):
    inbox = Inbox(kombu.Connection(url).channel(), keyed("a", **{"x-durable-subscriber": True}))
    told.put("ready")
    inbox.drain(2)
    told.put("read")
    inbox.rest(quiet_s=60)


def test_a_killed_one_leaves_the_rest_to_the_next(connect, broker_url):
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    process = context.Process(target=_read_two_and_hang, args=(broker_url, told), daemon=True)
    process.start()
    assert told.get(timeout=30) == "ready"
    publisher = connect().channel()
    send(publisher, 1, key="a")
    send(publisher, "other", key="b")
    send(publisher, 2, key="a")
    assert told.get(timeout=10) == "read"
    wait_until(lambda: {one.lag for one in publisher.fanout_subscribers("news")} == {0})
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    send(publisher, 3, key="a")
    send(publisher, "other", key="b")
    again = Inbox(connect().channel(), keyed("a", **{"x-durable-subscriber": True}))
    again.exactly(1)
    assert flags(again) == [(3, True)]


def test_after_a_cut_it_goes_on_where_it_was(connect, redis_client):
    connection = connect()
    inbox = Inbox(connection.channel(), keyed("a"), ack=False)
    publisher = connect().channel()
    send(publisher, 1, 2, key="a")
    inbox.drain(2)
    inbox.messages[0].ack()
    redis_client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(connection.connection_errors):
        inbox.rest(quiet_s=5)
    publisher = connect().channel()
    send(publisher, "other", key="b")
    send(publisher, 3, key="a")
    reconnect(connection)
    again = Inbox(connection.channel(), keyed("a"))
    again.exactly(2)
    assert flags(again) == [(2, True), (3, False)]


# -- limits of the exchange -----------------------------------------------------------------------------------------------


def test_a_rejected_one_goes_to_the_dead_letter_exchange_of_its_queue(connect, redis_client):
    channel = connect().channel()
    channel.queue_declare("graves", durable=True)
    inbox = Inbox(channel, keyed("a", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}), ack=False)
    publisher = connect().channel()
    send(publisher, 1, key="a")
    inbox.drain(1)
    inbox.messages[0].reject()
    assert Inbox(connect().channel(), "graves").drain(1) == [1]


# -- publishers -----------------------------------------------------------------------------------------------------------


def test_a_publish_that_fails_in_its_middle_is_repeated_without_a_trace(connect, redis_client, noticed):
    inbox = Inbox(connect().channel(), keyed("a"))
    publisher = connect().channel()
    send(publisher, 1, key="a")
    inbox.drain(1)
    inbox.rest()
    # The counter of a second subscriber is no number: the first one has the broadcast already.
    redis_client.hset(FILTERS, mapping={"key:#": '["broken"]', "patterns": '["#"]', "count:broken": "x"})
    with pytest.raises(ResponseError, match="not an integer"):
        send(publisher, 2, key="a")
    assert redis_client.hget(META, "count") == b"1"
    assert redis_client.xlen(STREAM) == 1
    redis_client.hdel(FILTERS, "patterns", "key:#", "count:broken")
    send(connect().channel(), 3, key="a")
    assert inbox.exactly(2) == [1, 3]
    wait_until(lambda: redis_client.zrange(CURSORS, 0, -1, withscores=True)[0][1] == float("inf"))
    assert noticed == []


@pytest.mark.not_on("all", reason="a proxy leads to one server")
def test_replies_that_are_lost_double_nothing(connect, broker_url):
    inbox = Inbox(connect().channel(), keyed("a"))
    with Proxy(lambda: urlsplit(broker_url).port) as proxy:
        connection = connect(proxy.url(int(urlsplit(broker_url).path[1:])))
        # By its name: kombu 5.6.0 declares an exchange over the channel that is lost.
        producer = kombu.Producer(connection.channel())
        producer.publish(0, exchange="news", routing_key="a")
        for number in range(1, 11):
            proxy.lose_replies()
            threading.Timer(0.05, lambda: proxy.heal(resets=True)).start()
            producer.publish(
                number, exchange="news", routing_key="a" if number % 2 else "b", retry=True,
                retry_policy={"max_retries": 10, "interval_start": 0.05, "interval_step": 0},
            )  # fmt: skip
        assert inbox.exactly(6) == [0, 1, 3, 5, 7, 9]
