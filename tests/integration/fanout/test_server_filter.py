"""A subscriber with `x-server-filter` gets the broadcasts that match its binding keys, and no bytes of others (issue 19)."""

from __future__ import annotations

import random
import threading
import time
from urllib.parse import urlsplit

import kombu
import pytest

from celery_redis_plus.broker.exchanges.topics import matches_topic
from celery_redis_plus.scripts import compose
from celery_redis_plus.signals import Missed
from tests.integration.fanout.conftest import NEWS, flags, send
from tests.integration.fanout.filtering import CURSORS, META, STREAM, fields_left, keyed
from tests.support.inbox import Inbox
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

MATCHING = """-- @include note_matches
local found = {}
for i = 1, #ARGV, 2 do found[#found + 1] = matches_topic(ARGV[i], split_words(ARGV[i + 1])) and 1 or 0 end
return found
"""


@pytest.mark.not_on("all", reason="a proxy leads to one server")
@pytest.mark.parametrize("arguments", [{}, {"x-durable-subscriber": True}], ids=["ordinary", "durable"])
def test_a_thousand_broadcasts_of_other_keys_cost_a_subscriber_less_than_5_kb(
    connect, broker_url, redis_client, arguments, record_property
):
    with Proxy(lambda: urlsplit(broker_url).port) as proxy:
        # Heartbeats of every second make it worse, if anything.
        connection = connect(proxy.url(int(urlsplit(broker_url).path[1:])), subscriber_timeout=3)
        inbox = Inbox(connection.channel(), keyed("k7", **arguments))
        send(connect().channel(), "first", key="k7")
        assert inbox.drain(1) == ["first"]
        inbox.rest(quiet_s=1.5)
        before = proxy.answered
        publisher = connect().channel()
        for number in range(1000):
            send(publisher, "x" * 1024, key=f"k{number + 8}")
        assert inbox.rest(quiet_s=1.5) == ["first"]
        spent = proxy.answered - before
        record_property("bytes", spent)
        assert spent < 5000
        send(publisher, "x" * 1024, key="k7")
        inbox.drain(2)
    assert int(redis_client.hget(META, "count")) == 1002


def test_the_order_of_the_exchange_holds_over_several_keys_and_two_publishers(connect):
    inbox = Inbox(connect().channel(), keyed("a", "b.*", "c.#"))
    everything = Inbox(connect().channel(), kombu.Queue("all", NEWS, routing_key="#", durable=True))
    keys = ["a", "b", "b.x", "b.x.y", "c", "c.x.y", "d", "d.a", ""]

    def publish(name):
        random_key = random.Random(name)
        channel = connect().channel()
        for number in range(300):
            key = random_key.choice(keys)
            send(channel, [name, number, key], key=key)

    threads = [threading.Thread(target=publish, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_order = everything.exactly(600)
    wanted = [body for body in in_order if body[2] in {"a", "b.x", "c", "c.x.y"}]
    assert inbox.exactly(len(wanted)) == wanted
    assert len(wanted) > 100


def test_words_of_keys_match_as_everywhere(redis_client):
    """The server's match of a binding key and a routing key is that of topic exchanges here."""
    source = compose(MATCHING)
    choose = random.Random(19)
    pairs = [("#.a.#.a.#.a.#", "a." * 30 + "b"), ("", ""), ("#", ""), ("*", ""), ("*", "."), ("*.*", "."), ("a*", "ab")]
    for _ in range(3000):
        pattern = ".".join(choose.choices(["a", "b", "*", "#", ""], k=choose.randrange(6)))
        key = ".".join(choose.choices(["a", "b", "c", ""], k=choose.randrange(7)))
        pairs.append((pattern, key))
    found = redis_client.eval(source, 0, *(text for pair in pairs for text in pair))
    assert [bool(one) for one in found] == [matches_topic(*pair) for pair in pairs]
    assert 100 < sum(found) < 2900


def test_keys_come_and_go_while_it_consumes(connect, redis_client):
    channel = connect().channel()
    inbox = Inbox(channel, keyed("a", "b"))
    publisher = connect().channel()
    send(publisher, 1, key="a")
    send(publisher, 2, key="b")
    assert inbox.drain(2) == [1, 2]
    channel.queue_unbind("q", "news", "a")
    channel.queue_bind("q", "news", "c.*")
    for number, key in enumerate(("a", "b", "c", "c.x"), 3):
        send(publisher, number, key=key)
    assert inbox.exactly(4) == [1, 2, 4, 6]
    inbox.cancel()
    channel.connection.client.release()
    wait_until(lambda: fields_left(redis_client) == ({}, [], None))


def test_a_key_that_another_process_unbound_comes_back_with_its_binding(connect):
    one, other = connect().channel(), connect().channel()
    queue = keyed("a", "b", **{"x-durable-subscriber": True})
    inbox = Inbox(one, queue)
    queue(other).declare()
    other.queue_unbind("q", "news", "a")
    one.queue_bind("q", "news", "a")
    send(connect().channel(), 1, key="a")
    assert inbox.drain(1) == [1]


def test_one_connection_reads_with_filters_and_without(connect):
    channel = connect().channel()
    inbox = Inbox(channel, keyed("a", name="x"), keyed("b", name="y"), kombu.Queue("all", NEWS, routing_key="#", durable=True))
    publisher = connect().channel()
    for number in range(30):
        send(publisher, number, key="abc"[number % 3])
    inbox.exactly(50)
    found = {"x": [], "y": [], "all": []}
    for message in inbox.messages:
        subscriber = message.delivery_tag.partition("/")[0]
        found[subscriber.partition(".")[2]].append(message.payload)
    assert found == {"x": list(range(0, 30, 3)), "y": list(range(1, 30, 3)), "all": list(range(30))}


@pytest.mark.parametrize("key", ["", "#"])
def test_a_binding_without_a_key_gets_everything(connect, key):
    inbox = Inbox(connect().channel(), keyed(key))
    publisher = connect().channel()
    send(publisher, 1, key="a")
    send(publisher, 2)
    assert inbox.drain(2) == [1, 2]


def test_without_fanout_patterns_it_gets_everything(connect):
    inbox = Inbox(connect(fanout_patterns=False).channel(), keyed("a"))
    send(connect().channel(), 1, key="b")
    assert inbox.drain(1) == [1]


def test_odd_names_of_queues_and_keys(connect, redis_client):
    names = ["a b", 'quo"te\\', "{x}:y", "ünï\udcff", "durable.q", "new\nline"]
    inboxes = [Inbox(connect().channel(), keyed(name, name=name)) for name in names]
    publisher = connect().channel()
    for name in names:
        send(publisher, names.index(name), key=name)
    assert [inbox.exactly(1) for inbox in inboxes] == [[at] for at in range(len(names))]


def test_many_matches_are_read_in_pages(connect):
    connection = connect()
    queue = keyed("a")
    queue(connection.channel()).declare()
    publisher = connect().channel()
    for number in range(700):
        send(publisher, number, key="a" if number % 2 else "b")
    assert Inbox(connection.channel(), queue).exactly(350) == list(range(1, 700, 2))


def test_large_matches_are_read_a_few_at_a_time(connect):
    connection = connect()
    queue = keyed("a")
    queue(connection.channel()).declare()
    publisher = connect().channel()
    bodies = [f"{number}" * 900_000 for number in range(9)]
    send(publisher, *bodies, key="a")
    assert Inbox(connection.channel(), queue).exactly(9) == bodies


# -- what is counted and kept ---------------------------------------------------------------------------------------------


def test_lag_counts_what_matches(connect):
    connection = connect()
    keyed("a", **{"x-durable-subscriber": True})(connection.channel()).declare()
    connection.release()
    publisher = connect().channel()
    for key in "abbab":
        send(publisher, key, key=key)
    [kept] = publisher.fanout_subscribers("news")
    assert (kept.id, kept.lag) == ("durable.q", 2)
    inbox = Inbox(connect().channel(), keyed("a", **{"x-durable-subscriber": True}))
    inbox.drain(2)
    wait_until(lambda: [one.lag for one in publisher.fanout_subscribers("news")] == [0, 0])
    assert {one.counts.acked for one in publisher.fanout_subscribers("news")} == {2}


def test_the_stream_drops_what_nobody_has_to_read(connect, redis_client):
    inbox = Inbox(connect().channel(), keyed("a"))
    publisher = connect().channel()
    for _ in range(1000):
        send(publisher, 1, key="b")
    send(publisher, 2, key="a")
    inbox.drain(1)
    wait_until(lambda: redis_client.zrange(CURSORS, 0, -1, withscores=True)[0][1] == float("inf"))
    send(publisher, 3, key="a")
    inbox.drain(2)
    # The server drops whole blocks of a hundred.
    wait_until(lambda: redis_client.xlen(STREAM) < 150)
    for number in range(500):
        send(publisher, number, key="a")
    inbox.drain(502)
    [matches] = redis_client.keys(META + ":matches:*")
    wait_until(lambda: redis_client.xlen(matches) < 150)


def test_what_it_holds_is_kept_in_the_stream(connect, redis_client):
    inbox = Inbox(connect().channel(), keyed("a"), ack=False)
    publisher = connect().channel()
    for number in range(300):
        send(publisher, number, key="a" if number == 5 else "b")
    inbox.drain(1)
    time.sleep(1.5)  # two reports: what is trimmed wrongly is trimmed by then
    assert redis_client.xlen(STREAM) >= 295
    inbox.messages[0].requeue()
    inbox.drain(2)
    assert flags(inbox) == [(5, False), (5, True)]


def test_what_the_stream_dropped_counts_as_lost(connect, noticed):
    queue = keyed("a", **{"x-durable-subscriber": True})
    with connect() as connection:
        queue(connection.channel()).declare()
    publisher = connect(stream_maxlen=100).channel()
    for number in range(2000):
        send(publisher, number, key="a" if number % 2 else "b")
    inbox = Inbox(connect().channel(), queue)
    received = inbox.rest()
    assert received == list(range(1, 2000, 2))[-len(received) :]
    assert 40 < len(received) < 300
    assert sum(one.count for one in noticed if isinstance(one, Missed)) == 1000 - len(received)
    wait_until(lambda: {one.counts.lost for one in publisher.fanout_subscribers("news")} == {1000 - len(received)})


def test_when_all_that_matched_was_dropped_it_is_told_as_well(connect, noticed, redis_client):
    connection = connect()
    queue = keyed("a")
    queue(connection.channel()).declare()
    publisher = connect().channel()
    send(publisher, 1, 2, key="a")
    redis_client.xtrim(STREAM, maxlen=0)
    inbox = Inbox(connection.channel(), queue)
    wait_until(lambda: inbox.pump(0.05) or noticed)
    assert [one.count for one in noticed] == [2]
    send(publisher, 3, key="a")
    assert inbox.drain(1) == [3]
