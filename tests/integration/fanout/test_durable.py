"""A durable subscriber keeps its place while no process reads for it (`x-durable-subscriber`)."""

from __future__ import annotations

import multiprocessing
import os
import signal

import kombu
import pytest

from celery_redis_plus.errors import InvalidArgument
from tests.integration.fanout.conftest import NEWS, flags, news, send
from tests.support.inbox import Inbox
from tests.support.services import end_services
from tests.support.waiting import wait_until

DURABLE = {"x-durable-subscriber": True}


def durable(name="service"):
    return news(name, **DURABLE)


def places(channel):
    return {one.queue: one for one in channel.fanout_subscribers("news") if one.durable}


def test_what_was_sent_while_it_was_down_arrives_unflagged_after_it_left_in_order(connect):
    publisher = connect().channel()
    with connect() as connection:
        inbox = Inbox(connection.channel(), durable())
        send(publisher, 1, 2)
        inbox.drain(2)
    send(publisher, 3, 4)
    assert places(publisher)["service"].lag == 2
    assert places(publisher)["service"].state == "left"
    again = Inbox(connect().channel(), durable())
    again.drain(2)
    assert flags(again) == [(3, False), (4, False)]


def test_what_it_had_not_settled_when_it_left_comes_again(connect):
    publisher = connect().channel()
    with connect() as connection:
        inbox = Inbox(connection.channel(), durable(), ack=False)
        send(publisher, 1, 2)
        inbox.drain(2)
        inbox.messages[0].ack()
    assert Inbox(connect().channel(), durable()).exactly(1) == [2]


@pytest.mark.parametrize(("requeued", "settled"), [(0, 1), (2, 1)])
def test_what_was_requeued_and_what_is_open_comes_again_whichever_came_first(connect, requeued, settled):
    publisher = connect().channel()
    with connect() as connection:
        inbox = Inbox(connection.channel(), durable(), ack=False)
        send(publisher, 0, 1, 2)
        inbox.drain(3)
        inbox.messages[settled].ack()
        # It has not come again when its process leaves.
        inbox.messages[requeued].requeue()
    assert {0, 2} <= set(Inbox(connect().channel(), durable()).rest())


def _read_two_and_hang(url, told):
    inbox = Inbox(kombu.Connection(url).channel(), durable())
    told.put("ready")
    inbox.drain(2)
    told.put("read")
    inbox.rest(quiet_s=60)


def test_a_killed_process_leaves_what_it_may_have_seen_to_the_next_flagged(connect, broker_url):
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    process = context.Process(target=_read_two_and_hang, args=(broker_url, told), daemon=True)
    process.start()
    assert told.get(timeout=30) == "ready"
    publisher = connect().channel()
    send(publisher, 1, 2)
    assert told.get(timeout=10) == "read"
    wait_until(lambda: places(publisher)["service"].lag == 0)
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    send(publisher, 3)
    assert places(publisher)["service"].lag == 1
    again = Inbox(connect().channel(), durable())
    again.drain(1)
    # It may have been delivered between the last report and the end; nobody knows.
    assert flags(again) == [(3, True)]
    send(publisher, 4)
    again.drain(2)
    assert flags(again)[1:] == [(4, False)]


def test_what_a_dead_reader_has_not_read_is_not_missed(connect, hasty):
    Inbox(connect(subscriber_timeout=1).channel(), durable())
    publisher = connect().channel()
    wait_until(lambda: {one.state for one in publisher.fanout_subscribers("news")} == {"live"})
    end_services()
    send(publisher, 1, 2)
    wait_until(lambda: publisher.fanout_deaths("news"), 10)
    [death] = publisher.fanout_deaths("news")
    assert (death.queue, death.unread, publisher.fanout_counters("news")["missed"]) == ("service", 0, 0)
    assert Inbox(connect().channel(), durable()).exactly(2) == [1, 2]


def test_two_processes_that_read_for_one_get_everything_each_and_its_place_moves_with_the_first(connect):
    one, two = connect(), connect()
    first, second = Inbox(one.channel(), durable()), Inbox(two.channel(), durable())
    publisher = connect().channel()
    send(publisher, *range(10))
    assert first.drain(10) == list(range(10))
    wait_until(lambda: places(publisher)["service"].lag == 0)
    one.release()
    assert second.drain(10) == list(range(10))
    two.release()
    send(publisher, "later")
    assert Inbox(connect().channel(), durable()).exactly(1) == ["later"]


def test_a_slower_reader_moves_its_place_not_back(connect):
    first = Inbox(connect().channel(), durable())
    slower = Inbox(connect().channel(), durable(), prefetch=3, ack=False)
    publisher = connect().channel()
    send(publisher, *range(10))
    first.drain(10)
    wait_until(lambda: places(publisher)["service"].lag == 0)
    slower.drain(3)
    for message in slower.messages[:2]:
        message.ack()
    wait_until(lambda: any(one.lag == 8 for one in publisher.fanout_subscribers("news")))
    assert places(publisher)["service"].lag == 0
    for inbox in (first, slower):
        inbox.connection.release()
    send(publisher, "later")
    assert Inbox(connect().channel(), durable()).exactly(1) == ["later"]


def test_it_has_not_left_while_another_process_reads_for_it(connect):
    first, _ = (Inbox(connect().channel(), durable()) for _ in range(2))
    publisher = connect().channel()
    wait_until(lambda: [one.state for one in publisher.fanout_subscribers("news")] == ["live"] * 3)
    first.connection.release()
    wait_until(lambda: len(publisher.fanout_subscribers("news")) == 2)
    assert places(publisher)["service"].state == "live"


def test_it_ends_with_its_binding_or_its_queue(connect, redis_client):
    channel = connect().channel()
    durable("a")(channel).declare()
    durable("b")(channel).declare()
    assert set(places(channel)) == {"a", "b"}
    channel.queue_unbind("a", "news")
    channel.queue_delete("b")
    assert places(channel) == {}
    assert not redis_client.exists("subscriber:{/0.news}")


def test_what_the_stream_no_longer_holds_is_reported_when_it_returns(connect, noticed):
    with connect() as connection:
        durable()(connection.default_channel).declare()
        Inbox(connection.channel(), durable())
    publisher = connect(stream_maxlen=100).channel()
    NEWS(publisher).declare()
    send(publisher, *range(1000))
    received = Inbox(connect().channel(), durable()).rest()
    assert received == list(range(1000 - len(received), 1000))
    [missed] = noticed
    assert missed.count == 1000 - len(received) > 0


@pytest.mark.parametrize("flag", ["auto_delete", "exclusive"])
def test_a_queue_that_goes_with_its_consumer_cannot_be_one(channel, flag):
    with pytest.raises(InvalidArgument, match=f"allowed only with {flag}=False"):
        channel.queue_declare("q", arguments=DURABLE, **{flag: True})
