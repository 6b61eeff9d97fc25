"""The options that say how much a consumer claims, and how often."""

from __future__ import annotations

import pytest

from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


def unacked(channel):
    return channel.queue_sizes("q").unacked


@pytest.mark.parametrize("prefetch", [0, 100])
def test_a_claim_takes_at_most_the_batch_size(connect, prefetch):
    channel, publisher = connect(fetch_batch_size=3).channel(), connect().channel()
    declare(channel, "q")
    publish(publisher, "q", *range(10))
    inbox = Inbox(channel, "q", prefetch=prefetch, ack=False)
    held = []
    for _ in range(10):
        inbox.pump(5)
        held.append(unacked(publisher))
    assert held == [3, 3, 3, 6, 6, 6, 9, 9, 9, 10]
    assert inbox.bodies == list(range(10))


def test_a_larger_batch_than_the_usual_is_claimed_at_once(connect):
    channel, publisher = connect(fetch_batch_size=250).channel(), connect().channel()
    declare(channel, "q")
    publish(publisher, "q", *range(260))
    Inbox(channel, "q", ack=False).pump(5)
    assert unacked(publisher) == 250


@pytest.mark.parametrize("factor", [1, 2, 2.5])
def test_what_is_overfetched_waits_claimed_and_is_not_delivered_beyond_the_prefetch(connect, factor):
    channel, publisher = connect(overfetch_factor=factor).channel(), connect().channel()
    declare(channel, "q")
    publish(publisher, "q", *range(20))
    inbox = Inbox(channel, "q", prefetch=4, ack=False)
    inbox.rest()
    assert inbox.bodies == [0, 1, 2, 3]
    assert unacked(publisher) == 4 * factor
    inbox.messages[0].ack()
    assert inbox.rest() == [0, 1, 2, 3, 4]
    assert unacked(publisher) == 4 * factor
    channel.close()
    assert publisher.queue_sizes("q").ready == 19


def test_overfetched_messages_keep_their_order_and_all_arrive(connect, loop):
    connection, publisher = connect(overfetch_factor=3, fetch_batch_size=2), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(100))
    inbox = Inbox(connection.channel(), "q", prefetch=2)
    loop(connection).run(lambda: len(inbox.messages) == 100)
    assert inbox.bodies == list(range(100))


@pytest.mark.parametrize("looped", [False, True])
def test_claims_keep_their_distance(connect, loop, looped):
    connection, publisher = connect(min_fetch_interval=0.4), connect().channel()
    inbox = Inbox(connection.channel(), "q")
    run = loop(connection).run if looped else lambda until: wait_until(lambda: inbox.pump(0.02) and until())
    publish(publisher, "q", "first")
    run(lambda: len(inbox.messages) == 1)
    publish(publisher, "q", "second", "third")
    run(lambda: len(inbox.messages) == 3)
    # The clock stands before the first delivery already.
    assert inbox.times[1] - inbox.times[0] >= 0.35
    assert inbox.times[2] - inbox.times[1] < 0.2


def test_what_comes_while_one_rests_is_anothers(connect):
    resting, other, publisher = connect(min_fetch_interval=9), connect(), connect().channel()
    first = Inbox(resting.channel(), "q")
    publish(publisher, "q", "first")
    first.drain(1)
    second = Inbox(other.channel(), "q")
    for number in range(20):
        publish(publisher, "q", number)
        first.pump(0.01)
        second.drain(number + 1)
    assert first.bodies == ["first"]


def test_an_idle_consumer_looks_by_itself_after_the_longest_interval(connect, redis_client):
    inbox = Inbox(connect(polling_interval=0.2).channel(), "q")

    def blocked_calls():
        return redis_client.info("commandstats").get("cmdstat_bzmpop", {}).get("calls", 0)

    before = blocked_calls()
    start = machine_time()
    while blocked_calls() < before + 4:
        inbox.pump(0.1)
        assert machine_time() - start < 10


def test_the_intervals_have_to_fit_each_other(connect):
    from celery_redis_plus.errors import OptionError

    with pytest.raises(OptionError, match="min_fetch_interval=5 is not allowed; allowed: at most 2"):
        connect(min_fetch_interval=5, polling_interval=2)
