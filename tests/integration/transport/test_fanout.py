"""Broadcasts: every bound queue gets every message that its pattern wants, from its binding on, across reconnects."""

from __future__ import annotations

import kombu
import pytest

from tests.support.inbox import Inbox, publish
from tests.support.lost_replies import LostReplies
from tests.support.machine_time import machine_time

EXCHANGE = kombu.Exchange("news", "fanout", durable=True)


def subscribed(name="q", key="", exchange=EXCHANGE):
    return kombu.Queue(name, exchange, routing_key=key, durable=True)


def send(channel, *bodies, key=""):
    producer = kombu.Producer(channel, EXCHANGE)
    for body in bodies:
        producer.publish(body, routing_key=key)


def test_every_subscriber_gets_every_message_in_order(connect):
    inboxes = [Inbox(connect().channel(), subscribed(f"q{number}")) for number in range(3)]
    send(connect().channel(), *range(250))
    for inbox in inboxes:
        assert inbox.drain(250) == list(range(250))


def test_a_subscriber_gets_nothing_from_before_its_binding(connect):
    publisher = connect().channel()
    EXCHANGE(publisher).declare()
    send(publisher, "before")
    inbox = Inbox(connect().channel(), subscribed())
    send(publisher, "after")
    assert inbox.rest() == ["after"]


def test_what_is_sent_between_binding_and_first_read_arrives(connect):
    channel = connect().channel()
    subscribed()(channel).declare()
    send(connect().channel(), 1, 2)
    inbox = Inbox(channel, subscribed())
    send(connect().channel(), 3)
    assert inbox.drain(3) == [1, 2, 3]


def test_a_subscriber_gets_its_own_broadcasts_too(channel):
    inbox = Inbox(channel, subscribed())
    send(channel, "echo")
    assert inbox.drain(1) == ["echo"]


def test_two_exchanges_on_one_queue(channel):
    other = kombu.Exchange("weather", "fanout", durable=True)
    subscribed(exchange=other)(channel).declare()
    inbox = Inbox(channel, subscribed())
    send(channel, "news")
    kombu.Producer(channel, other).publish("rain")
    assert sorted(inbox.drain(2)) == ["news", "rain"]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("", {"task.x", "task", "worker.x", "a.b.x"}),
        ("#", {"task.x", "task", "worker.x", "a.b.x"}),
        ("*.x", {"task.x", "worker.x"}),
        ("task.#", {"task.x", "task"}),
        ("task", {"task"}),
        ("nothing", set()),
    ],
)
def test_patterns_filter_as_a_topic_exchange_does(channel, pattern, wanted):
    inbox = Inbox(channel, subscribed(key=pattern))
    for key in ("task.x", "task", "worker.x", "a.b.x"):
        send(channel, key, key=key)
    assert set(inbox.rest(0.1)) == wanted


@pytest.mark.parametrize("pattern", ["", "#", "*.x", "task", "nothing"])
def test_a_message_without_a_key_reaches_every_binding(channel, pattern):
    inbox = Inbox(channel, subscribed(key=pattern))
    send(channel, "all")
    send(channel, "others", key="of.others")
    send(channel, "all")
    assert [body for body in inbox.rest(0.1) if body == "all"] == ["all", "all"]


def test_without_fanout_patterns_every_subscriber_gets_everything(connect):
    channel = connect(fanout_patterns=False).channel()
    inbox = Inbox(channel, subscribed(key="only.this"))
    send(channel, 1, key="something.else")
    assert inbox.drain(1) == [1]


def test_two_patterns_of_one_queue_bring_a_message_once(channel):
    subscribed(key="*.x")(channel).declare()
    inbox = Inbox(channel, subscribed(key="task.#"))
    send(channel, "both", key="task.x")
    send(channel, "first", key="worker.x")
    assert inbox.rest() == ["both", "first"]


def test_two_queues_with_different_patterns_on_one_connection(connection):
    one, two = Inbox(connection.channel(), subscribed("one", "a.*")), Inbox(connection.channel(), subscribed("two", "b.*"))
    for number in range(10):
        send(connection.default_channel, number, key=f"{'ab'[number % 2]}.x")
    one.rest()
    assert (one.bodies, two.bodies) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])


def test_a_consumer_of_broadcasts_and_messages_gets_both(channel):
    inbox = Inbox(channel, subscribed("events"), "work")
    for number in range(20):
        send(channel, f"event {number}")
        publish(channel, "work", f"job {number}")
    received = inbox.drain(40)
    assert [body for body in received if body.startswith("event")] == [f"event {number}" for number in range(20)]
    assert [body for body in received if body.startswith("job")] == [f"job {number}" for number in range(20)]


def test_reading_goes_on_after_a_reconnect_where_it_stopped(connect, redis_client):
    publisher = connect()
    connection = connect()
    inbox = Inbox(connection.channel(), subscribed())
    send(publisher.default_channel, 1, 2)
    assert inbox.drain(2) == [1, 2]
    redis_client.client_kill_filter(_type="normal", skipme=True)
    publisher = connect()
    send(publisher.default_channel, 3, 4)
    with pytest.raises(connection.connection_errors):
        inbox.rest(quiet_s=5)
    connection.collect()
    connection.ensure_connection(max_retries=3)
    again = Inbox(connection.channel(), subscribed())
    assert again.drain(2) == [3, 4]
    send(publisher.default_channel, 5)
    assert again.drain(3) == [3, 4, 5]


def test_a_cancelled_consumer_that_binds_again_starts_anew(channel):
    inbox = Inbox(channel, subscribed())
    send(channel, 1)
    inbox.drain(1)
    inbox.cancel()
    send(channel, "while away")
    subscribed()(channel).declare()
    inbox.consumer.consume()
    send(channel, 2)
    assert inbox.rest()[-1] == 2


def test_a_broadcast_ends_with_its_ack_or_reject_and_comes_again_flagged_after_a_requeue(channel, redis_client):
    inbox = Inbox(channel, subscribed(), ack=False)
    send(channel, 1, 2, 3)
    inbox.drain(3)
    inbox.messages[0].ack()
    inbox.messages[1].reject()
    inbox.messages[2].requeue()
    assert inbox.rest() == [1, 2, 3, 3]
    assert [message.delivery_info["redelivered"] for message in inbox.messages] == [False, False, False, True]
    assert redis_client.keys("message:*") == []


def test_broadcasts_are_not_bounded_by_unacked_messages_of_the_past(channel):
    """Nobody acks Celery's events."""
    inbox = Inbox(channel, subscribed(), no_ack=True, prefetch=2)
    send(channel, *range(50))
    assert inbox.drain(50) == list(range(50))


def test_a_stream_stays_near_its_length(connect, redis_client):
    channel = connect(stream_maxlen=100).channel()
    EXCHANGE(channel).declare()
    send(channel, *range(1000))
    # Approximately: whole nodes of 100 entries are dropped.
    assert 100 <= redis_client.xlen("/0.news") <= 300


@pytest.mark.parametrize(("prefix", "key"), [(True, b"/0.news"), (False, b"news"), ("x{db}:", b"x0:news")])
def test_the_stream_is_called_as_the_option_says(connect, redis_client, prefix, key):
    channel = connect(fanout_prefix=prefix).channel()
    EXCHANGE(channel).declare()
    send(channel, 1)
    assert redis_client.type(key) == b"stream"


def test_a_large_broadcast(channel):
    inbox = Inbox(channel, subscribed())
    send(channel, "x" * 2_000_000)
    assert inbox.drain(1) == ["x" * 2_000_000]


def test_foreign_entries_in_the_stream_are_passed_over(channel, redis_client):
    inbox = Inbox(channel, subscribed())
    redis_client.xadd("/0.news", {"from": "another program"})
    send(channel, "ours")
    assert inbox.drain(1) == ["ours"]


def test_deleting_the_exchange_deletes_the_stream(channel, redis_client):
    EXCHANGE(channel).declare()
    send(channel, 1)
    channel.exchange_delete("news")
    assert not redis_client.exists("/0.news")


def test_a_broadcast_reaches_an_idle_subscriber_at_once(connect):
    inbox = Inbox(connect().channel(), subscribed())
    inbox.rest(0.05)
    start = machine_time()
    send(connect().channel(), "wake up")
    inbox.drain(1)
    assert machine_time() - start < 0.5


def test_unbinding_ends_the_broadcasts(channel):
    inbox = Inbox(channel, subscribed("q", "a"))
    channel.queue_bind("q", "news", "b")
    channel.queue_unbind("q", "news", "a")
    send(channel, 1, key="a")
    send(channel, 2, key="b")
    assert inbox.rest() == [2]


def test_a_broadcast_whose_reply_was_lost_is_retried_and_stays_one(connect, monkeypatch):
    inbox = Inbox(connect().channel(), subscribed())
    connection = connect()
    replies = LostReplies(monkeypatch)
    replies.lose()
    # By its name: kombu 5.6 declares a bound Exchange again on the channel that has just failed.
    producer = kombu.Producer(connection)
    producer.publish("once", exchange="news", retry=True, retry_policy={"max_retries": 3, "interval_start": 0})
    assert replies.lost == 1
    assert inbox.rest() == ["once"]
