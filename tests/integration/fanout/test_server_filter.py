"""A subscriber with `x-server-filter` gets the broadcasts that match its binding keys, and no bytes of others (issue 19)."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from urllib.parse import urlsplit

import kombu
import pytest
from redis.exceptions import ResponseError

from celery_redis_plus.broker.exchanges.topics import matches_topic
from celery_redis_plus.errors import QueueFull
from celery_redis_plus.scripts import compose
from celery_redis_plus.signals import Missed
from tests.integration.fanout.conftest import NEWS, flags, reconnect, send
from tests.support.inbox import Inbox
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

FILTER = {"x-server-filter": True}
DURABLE = {**FILTER, "x-durable-subscriber": True}
MATCHING = """-- @include note_matches
local found = {}
for i = 1, #ARGV, 2 do found[#found + 1] = matches_topic(ARGV[i], split_words(ARGV[i + 1])) and 1 or 0 end
return found
"""
PENDING = """
local count = tonumber(redis.call('HGET', 'fanout:{/0.news}', 'count') or 0)
local slowest = redis.call('ZRANGE', 'cursors:{/0.news}', 0, 0, 'WITHSCORES')[2]
return math.max(0, count - tonumber(slowest == 'inf' and count or slowest or count))
"""
META, FILTERS, CURSORS, STREAM = "fanout:{/0.news}", "fanout:{/0.news}:filters", "cursors:{/0.news}", "/0.news"


def keyed(*keys, name="q", of=NEWS, **arguments):
    """Return a queue with the argument, bound by several keys."""
    return kombu.Queue(name, [kombu.binding(of, key) for key in keys], durable=True, queue_arguments={**FILTER, **arguments})


def limited(**arguments):
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return kombu.Exchange("news", "fanout", durable=True, arguments=table)


def fields_left(client):
    """Return what the server has of filters."""
    return client.hgetall(FILTERS), client.keys(META + ":matches:*"), client.hget(META, "filtered")


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


@pytest.mark.parametrize("overflow", ["block", "reject-publish", "drop-head"])
def test_what_does_not_match_fills_no_limit(connect, overflow, redis_client):
    of = limited(max_pending=3, max_length_bytes=3000, overflow=overflow)
    inbox = Inbox(connect().channel(), keyed("a", of=of))
    channel = connect(publish_timeout=5).channel()
    publisher = kombu.Producer(channel, of)
    for _ in range(50):
        publisher.publish("x" * 500, routing_key="b")
    publisher.publish(1, routing_key="a")
    assert inbox.drain(1) == [1]
    wait_until(lambda: redis_client.zrange(CURSORS, 0, 0, withscores=True)[0][1] == float("inf"))
    for _ in range(50):
        publisher.publish("x" * 500, routing_key="b")
    assert redis_client.hmget(META, "count", "rejected", "blocked", "dropped") == [b"101", None, None, None]


def test_a_full_exchange_refuses_because_of_what_it_has_not_processed(connect, redis_client):
    of = limited(max_pending=3, overflow="reject-publish")
    inbox = Inbox(connect().channel(), keyed("a", of=of), ack=False)
    publish = kombu.Producer(connect().channel(), of).publish
    publish(0, routing_key="b")
    publish(1, routing_key="a")
    publish(2, routing_key="b")
    publish(3, routing_key="b")
    with pytest.raises(QueueFull):
        publish(4, routing_key="b")
    inbox.drain(1)
    inbox.messages[0].ack()
    wait_until(lambda: redis_client.zrange(CURSORS, 0, 0, withscores=True)[0][1] == float("inf"))
    publish(5, routing_key="b")


def test_bytes_count_from_the_first_that_it_has_not_processed(connect, redis_client):
    of = limited(max_length_bytes=2500, overflow="reject-publish")
    Inbox(connect().channel(), keyed("a", of=of), ack=False)
    publish = kombu.Producer(connect().channel(), of).publish
    for _ in range(10):
        publish("x" * 800, routing_key="b")
    publish("x" * 800, routing_key="a")
    publish("x" * 800, routing_key="b")
    with pytest.raises(QueueFull):
        publish("x" * 800, routing_key="b")


def test_a_blocked_publisher_goes_on_after_the_ack_of_the_only_match(connect, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.broker.flow_control.controller.WAITER_CHECK_S", 60.0)
    of = limited(max_pending=100, overflow="block")
    inbox = Inbox(connect().channel(), keyed("a", of=of), ack=False)
    publish = kombu.Producer(connect().channel(), of).publish
    publish(1, routing_key="a")
    for _ in range(99):
        publish(2, routing_key="b")
    thread = threading.Thread(target=publish, args=("waited",), kwargs={"routing_key": "a"})
    thread.start()
    inbox.drain(1)
    inbox.rest()
    assert thread.is_alive()
    inbox.messages[0].ack()
    assert inbox.drain(2) == [1, "waited"]
    thread.join(10)


def test_publishers_never_exceed_the_limit_and_lose_nothing(connect, redis_client):
    of = limited(max_pending=20, overflow="block")
    inbox = Inbox(connect().channel(), keyed("a", of=of))
    everything = Inbox(connect().channel(), kombu.Queue("all", of, routing_key="#", durable=True))
    failures, publishing = [], True

    def publish(name):
        channel = connect().channel()
        try:
            for number in range(150):
                kombu.Producer(channel, of).publish([name, number], routing_key="ab"[number % 2])
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    def sample():
        while publishing:
            samples.append(redis_client.eval(PENDING, 0))

    samples = []
    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    sampler = threading.Thread(target=sample)
    for thread in (*threads, sampler):
        thread.start()
    deadline = time.monotonic() + 60
    while len(inbox.messages) < 300 or len(everything.messages) < 600:
        assert time.monotonic() < deadline, (len(inbox.messages), len(everything.messages), failures)
        inbox.pump(0.01)
        everything.pump(0.01)
    for thread in threads:
        thread.join(10)
    publishing = False
    sampler.join(10)
    assert failures == []
    assert inbox.bodies == [body for body in everything.bodies if body[1] % 2 == 0]
    assert 0 < max(samples) <= 20


def test_drop_head_drops_what_matched_and_it_is_told(connect, noticed):
    of = limited(max_pending=3)
    connection = connect()
    queue = keyed("a", of=of)
    queue(connection.channel()).declare()
    publish = kombu.Producer(connect().channel(), of).publish
    for number in range(8):
        publish(number, routing_key="a" if number in {2, 3, 7} else "b")
    assert Inbox(connection.channel(), queue).drain(1) == [7]
    assert [one.count for one in noticed if isinstance(one, Missed)] == [2]


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
