"""`x-filter`: consumers of a filtered queue take the messages whose headers match."""

from __future__ import annotations

import itertools
import random
import time

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import ConsumerCancelled, InvalidArgument
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.slow_calls import slow_calls
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere


def queue(wanted=None, **arguments):
    return kombu.Queue(
        "q",
        durable=True,
        queue_arguments={"x-filtered": True, **arguments},
        consumer_arguments=None if wanted is None else {"x-filter": wanted},
    )


def pump(*inboxes):
    for inbox in inboxes:
        inbox.pump(0.01)


def send(channel, *bodies, priority=0, **headers):
    publish(channel, "q", *bodies, headers=headers, priority=priority)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ({"region": "eu"}, ["eu", "eu 7", "odd"]),
        ({"region": "eu", "size": 7}, ["eu 7"]),
        ({"region": "us", "size": 7, "x-match": "any"}, ["eu 7", "us"]),
        ({"size": None}, ["eu 7", "float", "true"]),
        ({"size": 7.5}, ["float"]),
        ({"size": True}, ["true"]),
        ({'größe "q"': "ä\\"}, ["odd"]),
        ({"region": "nowhere"}, []),
    ],
)
def test_a_consumer_takes_what_matches_and_leaves_the_rest(channel, connect, wanted, taken):
    inbox = Inbox(channel, queue(wanted))
    send(channel, "eu", region="eu")
    send(channel, "eu 7", region="eu", size=7)
    send(channel, "us", region="us")
    send(channel, "float", size=7.5)
    send(channel, "true", size=True)
    send(channel, "odd", **{"region": "eu", 'größe "q"': "ä\\"})
    send(channel, "none")
    wait_until(lambda: (inbox.pump(0.02), inbox.bodies == taken)[1], 10, lambda: inbox.bodies)
    assert inbox.rest(0.2) == taken
    assert channel.queue_sizes("q").ready == 7 - len(taken)
    rest = Inbox(connect().channel(), queue())
    assert len(rest.drain(7 - len(taken))) == 7 - len(taken)


def test_the_consumer_that_matches_is_woken_and_the_others_rest(channel, connect, redis_client):
    sender = connect().channel()
    inboxes = [Inbox(connect().channel(), queue({"n": number}), prefetch=1) for number in range(4)]
    for inbox in inboxes:
        inbox.rest(0.05)
    for number in (3, 1, 2, 0, 3):
        send(sender, number, n=number)
        began, expected = machine_time(), len(inboxes[number].messages) + 1
        while len(inboxes[number].messages) < expected:
            pump(*inboxes)
            assert machine_time() - began < 2
    assert [inbox.bodies for inbox in inboxes] == [[0], [1], [2], [3, 3]]
    send(sender, *"abcde", n="for nobody")
    for inbox in inboxes:
        inbox.rest(0.05)
    with slow_calls(redis_client, 5_000) as calls:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            pump(*inboxes)
    assert calls.calls.get("claim_restricted", 0) < 12, calls.calls


def test_what_matches_is_found_behind_what_does_not_in_short_calls(channel, connect, redis_client):
    sender = connect().channel()
    declare(sender, "q", arguments={"x-filtered": True})
    send(sender, *range(3000), **{"for": "others"})
    send(sender, "mine", **{"for": "me"})
    with slow_calls(redis_client, 5_000) as calls:
        inbox = Inbox(channel, queue({"for": "me"}))
        assert inbox.drain(1) == ["mine"]
        send(sender, "more", **{"for": "me"})
        assert inbox.drain(2) == ["mine", "more"]
    assert "claim_restricted" not in calls.slow
    assert channel.queue_sizes("q").ready == 3000


@pytest.mark.parametrize("large", [{"body": "x" * 20_000}, {"body": "x", "text": "y" * 20_000}])
def test_a_look_at_large_messages_is_bounded_by_their_bytes(channel, connect, redis_client, large):
    sender = connect().channel()
    declare(sender, "q", arguments={"x-filtered": True})
    body, headers = large["body"], {"for": "others", "text": large.get("text", "")}
    send(sender, *([body] * 100), **headers)
    send(sender, "x" * 500_000, **{"for": "others"})
    send(sender, "y" * 500_000, **{"for": "me"})
    send(sender, *([body] * 20), **headers)
    send(sender, "mine", **{"for": "me"})
    with slow_calls(redis_client, 3_000) as calls:
        inbox = Inbox(channel, queue({"for": "me"}))
        assert [len(one) for one in inbox.drain(2)] == [500_000, 4]
        send(sender, "more", **{"for": "me"})
        assert inbox.drain(3)[2] == "more"
    assert "claim_restricted" not in calls.slow
    # A call reads three of the large ones.
    assert calls.calls["claim_restricted"] > 40
    assert channel.queue_sizes("q").ready == 121


def test_a_consumer_ends_where_its_queue_is_filtered_no_more(channel, connect, caplog):
    other = connect().channel()
    inbox = Inbox(channel, queue({"region": "eu"}))
    inbox.rest(0.05)
    other.queue_delete("q")
    declare(other, "q")
    publish(other, "q", "us", headers={"region": "us"})
    ends = "ends: queue 'q' was declared again, without 'x-filtered', and the consumer has an 'x-filter'"
    with pytest.raises(ConsumerCancelled, match="queue 'q' was deleted, or declared again"):
        inbox.drain(1)
    assert ends in caplog.text
    plain = Inbox(other, kombu.Queue("q", durable=True))
    publish(other, "q", "eu", headers={"region": "eu"})
    assert plain.drain(2) == ["us", "eu"]
    assert inbox.rest() == []
    assert other.queue_declare("q", passive=True).consumer_count == 1


def test_a_filter_holds_beside_a_consumer_without_one_on_the_same_connection(channel, connect, caplog):
    inbox = Inbox(channel, queue({"region": "eu"}))
    whole = Inbox(channel.connection.client.channel(), queue(), prefetch=1)
    inbox.rest(0.05)
    other = connect().channel()
    other.queue_delete("q")
    declare(other, "q")
    for number in range(20):
        publish(other, "q", number, headers={"region": "us"})
    with pytest.raises(ConsumerCancelled):
        whole.drain(21)
    assert "without 'x-filtered'" in caplog.text
    assert whole.drain(20) == list(range(20))
    assert inbox.bodies == []


def test_a_filtered_queue_comes_back_with_its_filters(channel, connect):
    other = connect().channel()
    inbox = Inbox(channel, queue({"region": "eu"}))
    inbox.rest(0.05)
    other.queue_delete("q")
    inbox.rest(0.05)
    declare(other, "q", arguments={"x-filtered": True})
    send(other, "us", region="us")
    send(other, "eu", region="eu")
    assert inbox.exactly(1) == ["eu"]


def test_a_filtered_queue_is_not_bound_to_a_fanout_exchange(channel):
    channel.exchange_declare("f", "fanout")
    declare(channel, "q", arguments={"x-filtered": True})
    error = r"'x-filtered' \(True\) of queue 'q', which is bound to the fanout exchange 'f'"
    with pytest.raises(ChannelError, match=error) as refused:
        channel.queue_bind("q", "f")
    assert refused.value.code == 406
    assert channel.session.bindings.all("f") == []


def test_messages_of_one_moment_are_all_looked_at(channel, redis_client):
    inbox = Inbox(channel, queue({"for": "me"}))
    of = channel.session.keys.queue("q")
    for number in range(700):
        send(channel, number, **{"for": "me" if number % 350 == 349 else "others"})
    inbox.cancel()
    for tag in redis_client.zrange(of.ready, 0, -1):
        redis_client.zadd(of.ready, {tag: 2_550_000_000_000_000})
    assert sorted(Inbox(channel, queue({"for": "me"})).exactly(2)) == [349, 699]


def test_priorities_hold_among_what_matches(channel):
    declare(channel, "q", arguments={"x-filtered": True})
    for number in range(300):
        send(channel, "other", n=number)
    send(channel, "low", region="eu")
    send(channel, "high", priority=9, region="eu")
    assert Inbox(channel, queue({"region": "eu"}), prefetch=1).drain(2) == ["high", "low"]


def test_a_message_that_comes_back_is_for_those_that_match(channel, connect):
    first = Inbox(channel, queue({"region": "eu"}), prefetch=1, ack=False)
    send(channel, "us", region="us")
    send(channel, "eu", region="eu")
    first.drain(1)
    other = Inbox(connect().channel(), queue({"region": "us"}))
    second = Inbox(connect().channel(), queue({"region": "eu"}))
    assert other.drain(1) == ["us"]
    first.consumer.cancel()
    first.messages[0].requeue()
    wait_until(lambda: (pump(other, second), second.bodies == ["eu"])[1], 10)
    assert other.bodies == ["us"]


def test_many_consumers_and_publishers_lose_and_mix_nothing(connect):
    rng = random.Random(7)
    wishes = [{"n": 0}, {"n": 0}, {"n": 1}, {"n": 2, "odd": True, "x-match": "any"}, {"n": 3}]
    inboxes = [Inbox(connect().channel(), queue(wish), prefetch=rng.choice((1, 3, 20))) for wish in wishes]
    sender = connect().channel()
    sent = []
    for number in range(400):
        headers = {"n": rng.randrange(5), "odd": rng.random() < 0.2}
        sent.append((number, headers))
        send(sender, number, priority=rng.choice((0, 5)), **headers)
        if rng.random() < 0.5:
            pump(rng.choice(inboxes))
    wanted = {number for number, headers in sent if headers["n"] < 4 or headers["odd"]}

    def received():
        return list(itertools.chain.from_iterable(inbox.bodies for inbox in inboxes))

    wait_until(
        lambda: (pump(*inboxes), len(received()) >= len(wanted))[1], 40, lambda: wanted.difference(received()), interval_s=0
    )
    assert sorted(received()) == sorted(wanted)
    by_number = dict(sent)
    for wish, inbox in zip(wishes, inboxes, strict=True):
        for body in inbox.bodies:
            headers = by_number[body]
            assert headers["n"] == wish["n"] or (wish.get("x-match") and headers["odd"])


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ("region = 'eu'", "allowed is a dict of headers"),
        ({}, "allowed are one header or more"),
        ({"x-match": "any"}, "allowed are one header or more"),
        ({"a": 1, "x-match": "some"}, "allowed are one header or more, with 'x-match' 'all' or 'any'"),
        ({"a": [1]}, "allowed as the value of 'a' are a str, true, false, None"),
        ({"a": 2**60}, "allowed as the value of 'a' are a str, true, false, None"),
        ({"a": "\udc80"}, "allowed are names and values that UTF-8 can encode"),
        ({"\udc80": None}, "allowed are names and values that UTF-8 can encode"),
    ],
)
def test_other_filters_are_refused(channel, wanted, error):
    declare(channel, "q", arguments={"x-filtered": True})
    with pytest.raises(InvalidArgument, match=error):
        channel.basic_consume("q", callback=print, arguments={"x-filter": wanted})


def test_what_does_not_go_with_filters_is_refused(channel):
    declare(channel, "plain")
    declare(channel, "q", arguments={"x-filtered": True})
    with pytest.raises(InvalidArgument, match="queue 'plain', which was declared without 'x-filtered'"):
        channel.basic_consume("plain", callback=print, arguments={"x-filter": {"a": 1}})
    with pytest.raises(InvalidArgument, match="'x-priority' of a consumer of queue 'q' is 3, and the queue is filtered"):
        channel.basic_consume("q", callback=print, arguments={"x-filter": {"a": 1}, "x-priority": 3})
    for name, value in (("x-single-active-consumer", True), ("x-max-unacked", 3), ("x-rate-limit", 5)):
        with pytest.raises(InvalidArgument, match=f"'x-filtered' of queue 'r' is True beside '{name}'"):
            declare(channel, "r", arguments={"x-filtered": True, name: value})
    channel.basic_consume("q", callback=print, consumer_tag="one", arguments={"x-filter": {"a": 1}})
    with pytest.raises(InvalidArgument, match="differs from another one's on its channel"):
        channel.basic_consume("q", callback=print, consumer_tag="two", arguments={"x-filter": {"a": 2}})
