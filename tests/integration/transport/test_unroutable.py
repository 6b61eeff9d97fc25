"""Messages that no queue takes: to the alternate exchange, else among the dead letters of a queue of our own."""

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import Unroutable
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare
from tests.support.stored import UNDELIVERED


@pytest.fixture
def letters(channel):
    return dead_letters_of(channel)


@pytest.fixture
def exchange(channel):
    """Declare an exchange: `exchange("e", "topic", alternate="other")`."""

    def make(name, kind="direct", alternate=None):
        arguments = None if alternate is None else {"alternate-exchange": alternate}
        made = kombu.Exchange(name, kind, durable=True, arguments=arguments)(channel)
        made.declare()
        return made

    return make


def bind(channel, name, exchange, key=""):
    kombu.Queue(name, exchange, routing_key=key, durable=True)(channel).declare()


def send(channel, body, exchange, key="k", **options):
    kombu.Producer(channel).publish(body, exchange=exchange, routing_key=key, **options)


# -- without an alternate exchange ------------------------------------------------------------------------------------------


def test_what_no_queue_takes_is_a_dead_letter_and_can_be_replayed(channel, exchange, letters, caplog):
    exchange("e")
    send(channel, "x", "e", priority=7)
    (letter,) = letters.all(UNDELIVERED)
    assert (letter.reason, letter.exchange, letter.routing_key, letter.queue) == ("unroutable", "e", "k", UNDELIVERED)
    assert letter.properties["priority"] == 7
    assert "no queue takes a message to exchange 'e' with routing key 'k'" in caplog.text
    declare(channel, "q")
    assert letters.replay(letter, "q")
    assert Inbox(channel, "q").drain(1) == ["x"]


def test_an_exchange_that_was_never_declared_loses_nothing_either(channel, letters):
    send(channel, "x", "nowhere")
    assert [letter.exchange for letter in letters.all(UNDELIVERED)] == ["nowhere"]


def test_the_store_is_bounded_as_that_of_any_queue(connect, exchange, letters, redis_client):
    exchange("e")
    channel = connect(dead_letter_max=3).channel()
    for number in range(5):
        send(channel, number, "e")
    assert [letter.body for letter in letters.all(UNDELIVERED)] == [b"2", b"3", b"4"]
    assert redis_client.hget(f"meta:{{{UNDELIVERED}}}", "dead_evicted") == b"2"
    # Somebody sweeps it although nobody consumes it, so that `dead_letter_ttl` holds.
    assert redis_client.sismember("always_swept", UNDELIVERED)


def test_a_mandatory_one_is_an_error_and_is_not_kept(channel, exchange, letters):
    exchange("e")
    with pytest.raises(ChannelError, match="not stored"):
        send(channel, "x", "e", mandatory=True)
    assert letters.count(UNDELIVERED) == 0


def test_the_option_deadletter_queue_goes_first(connect, exchange, letters):
    exchange("e")
    channel = connect(deadletter_queue="lost").channel()
    send(channel, "x", "e")
    assert channel.queue_sizes("lost").ready == 1
    assert letters.count(UNDELIVERED) == 0


@pytest.mark.parametrize("name", ["reply.celery.pidbox", "reply-of-mine", "worker.celery.pidbox"])
def test_replies_of_celery_s_own_are_only_counted(channel, exchange, letters, redis_client, name):
    exchange(name)
    for _ in range(3):
        send(channel, "x", name)
    assert letters.count(UNDELIVERED) == 0
    assert redis_client.hget(f"meta:{{{UNDELIVERED}}}", "unroutable") == b"3"


def test_a_reply_to_a_client_that_has_left_is_only_counted(channel, letters, redis_client):
    kombu.Queue("mine", exclusive=True, auto_delete=True)(channel).declare()
    channel.queue_delete("mine")
    send(channel, "x", "", "mine")
    assert letters.count(UNDELIVERED) == 0
    assert redis_client.hget(f"meta:{{{UNDELIVERED}}}", "unroutable") == b"1"


# -- with one ---------------------------------------------------------------------------------------------------------------


def test_the_alternate_exchange_gets_what_nobody_takes_and_nothing_else(channel, exchange, letters):
    exchange("e", alternate="other")
    bind(channel, "q", exchange("e", alternate="other"), "k")
    bind(channel, "rest", exchange("other", "topic"), "#")
    send(channel, "taken", "e", "k")
    send(channel, "not taken", "e", "else", mandatory=True)
    assert Inbox(channel, "q").drain(1) == ["taken"]
    rest = Inbox(channel, "rest")
    assert rest.drain(1) == ["not taken"]
    # As in RabbitMQ, the message tells where it was published to.
    assert rest.messages[0].delivery_info["exchange"] == "e"
    assert rest.messages[0].delivery_info["routing_key"] == "else"
    assert letters.count(UNDELIVERED) == 0


def test_a_chain_is_followed_to_the_first_that_takes_it(channel, exchange):
    exchange("a", alternate="b")
    exchange("b", alternate="c")
    bind(channel, "q", exchange("c", "topic", alternate="d"), "#")
    bind(channel, "never", exchange("d", "topic"), "#")
    send(channel, "x", "a")
    assert (channel.queue_sizes("q").ready, channel.queue_sizes("never").ready) == (1, 0)


@pytest.mark.parametrize("ring", [("a",), ("a", "b"), ("a", "b", "c")])
def test_a_circle_ends_and_the_message_is_kept(channel, exchange, letters, ring):
    for name, alternate in zip(ring, (*ring[1:], ring[0]), strict=True):
        exchange(name, alternate=alternate)
    send(channel, "x", "a")
    assert [letter.reason for letter in letters.all(UNDELIVERED)] == ["unroutable"]
    with pytest.raises(ChannelError, match="not stored"):
        send(channel, "x", "a", mandatory=True)


def test_an_alternate_exchange_that_does_not_exist_is_named_in_the_log(channel, exchange, letters, caplog):
    exchange("e", alternate="missing")
    send(channel, "x", "e")
    assert "the alternate exchange 'missing' of exchange 'e' does not exist" in caplog.text
    assert letters.count(UNDELIVERED) == 1


def test_a_fanout_exchange_can_be_the_alternate_one(channel, connect, exchange, letters):
    exchange("e", alternate="all")
    fanout = exchange("all", "fanout")
    send(channel, "nobody listens", "e")
    assert letters.count(UNDELIVERED) == 1
    inbox = Inbox(connect().channel(), kombu.Queue("s", kombu.Exchange("all", "fanout", durable=True), auto_delete=True))
    send(channel, "somebody does", "e")
    assert inbox.drain(1) == ["somebody does"]
    assert letters.count(UNDELIVERED) == 1
    assert fanout.name == "all"


def test_a_broadcast_without_subscribers_goes_to_the_alternate_exchange_as_well(channel, exchange, letters):
    exchange("news", "fanout", alternate="other")
    bind(channel, "rest", exchange("other", "topic"), "#")
    send(channel, "x", "news")
    assert Inbox(channel, "rest").drain(1) == ["x"]
    assert letters.count(UNDELIVERED) == 0


def test_dead_letters_take_the_alternate_way_too(channel, connect, exchange, letters):
    exchange("dead", alternate="other")
    bind(channel, "grave", exchange("other", "topic"), "#")
    queue = kombu.Queue("q", durable=True, queue_arguments={"x-dead-letter-exchange": "dead"})
    inbox = Inbox(channel, queue, ack=False)
    send(channel, "x", "", "q")
    inbox.drain(1)
    inbox.messages[0].reject()
    assert Inbox(connect().channel(), "grave").drain(1) == ["x"]


@pytest.mark.parametrize("name", [5, "", ["a"]])
def test_an_alternate_exchange_is_a_name(channel, name):
    with pytest.raises(ValueError, match="argument 'alternate-exchange' of exchange 'e'"):
        channel.exchange_declare("e", "direct", arguments={"alternate-exchange": name})


@pytest.mark.parametrize("exchange_name", ["", "e"])
def test_a_mandatory_one_goes_to_on_return_of_its_producer(channel, exchange, exchange_name, letters):
    exchange("e")
    returned = []
    producer = kombu.Producer(channel, on_return=lambda *parts: returned.append(parts))
    producer.publish({"a": 1}, exchange=exchange_name, routing_key="nowhere", mandatory=True, headers={"h": "x"})
    ((error, place, key, message),) = returned
    assert (type(error), place, key) == (Unroutable, exchange_name, "nowhere")
    assert (message.payload, message.headers["h"]) == ({"a": 1}, "x")
    assert not list(letters.all(UNDELIVERED))
    declare(channel, "q")
    producer.publish("taken", routing_key="q", mandatory=True)
    assert (len(returned), Inbox(channel, "q").drain(1)) == (1, ["taken"])
